"""The command's root: which subcommands there are.

A subcommand is a function in a file of its own, added here. It imports what it works with (numpy, gRPC,
servers) inside the function, so that `shoal --help` need not.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.down import down
from shoal.cli.encode import encode
from shoal.cli.models import models
from shoal.cli.queue import queue
from shoal.cli.register import delete, register
from shoal.cli.status import status
from shoal.cli.token import token
from shoal.cli.up import up
from shoal.cli.version import show_version, version

app = typer.Typer(
    name="shoal",
    help="Serve small models on the GPUs you have, and call them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve small models on the GPUs you have, and call them."""


models.command()(register)
models.command()(delete)
app.command()(up)
app.command()(down)
app.command()(status)
app.command()(encode)
app.add_typer(models, name="models")
app.add_typer(queue, name="queue")
app.add_typer(token, name="token")
app.command()(version)
