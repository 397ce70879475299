"""The options that say which mesh to call."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_TARGET = "127.0.0.1:50051"

Target = Annotated[
    str, typer.Option(envvar="SHOAL_TARGET", metavar="ADDRESS", help="The mesh: host:port or unix:/path.")
]
Token = Annotated[
    str | None, typer.Option(envvar="SHOAL_TOKEN", metavar="TOKEN", help="Sent with each call.", show_default=False)
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait for one answer.")]
