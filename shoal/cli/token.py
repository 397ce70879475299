"""`shoal token`: who may call a mesh."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import failures

if TYPE_CHECKING:
    from shoal_common.tokens import TokenEntry

File = Annotated[
    Path,
    typer.Option("--file", "-f", envvar="SHOAL_TOKENS", metavar="YAML", help="The file of tokens."),
]
DEFAULT_FILE = Path("tokens.yaml")
SHOWN_HASH_CHARS = 12
TOKEN_BYTES = 32

token = typer.Typer(help="Make tokens, which a mesh asks for when it runs with `shoal up --tokens FILE`.")


@token.command("new")
def new_token(
    tenant: Annotated[str, typer.Option(help="Whose it is: a to z, 0 to 9, dot, dash, underscore.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it allows: infer, admin, adapters:write, adapters:promote; repeatable.", show_default="infer"
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="The tenant's share of a busy model, beside others'.", show_default="the tenant's, or 1"),
    ] = None,
    file: File = DEFAULT_FILE,
) -> None:
    """Make a token, add its hash to the file, and print it: it is not kept anywhere.

    A running mesh takes the changed file within a second.
    Exit codes: 0 it is made, 2 wrong usage, or the file cannot be used.
    """
    import secrets

    from pydantic import ValidationError

    tokens = _tokens()
    entries = _entries(file) if file.exists() else []
    if weight is None:
        weight = next((each.weight for each in entries if each.tenant == tenant), 1.0)
    made = secrets.token_urlsafe(TOKEN_BYTES)
    scopes = list(dict.fromkeys(scope or ["infer"]))
    try:
        entry = tokens.TokenEntry.model_validate(
            {"sha256": tokens.digest(made), "tenant": tenant, "scopes": scopes, "weight": weight}
        )
        text = tokens.written([*entries, entry])
        tokens.parse(text)
    except ValidationError as error:
        failures.usage("; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()))
    except tokens.BadTokens as error:
        failures.usage(str(error))
    with failures.reported():
        _write(file, text)
    failures.say(f"added to {file} for tenant {tenant} ({', '.join(scopes)}); the token, shown this once:")
    typer.echo(made)


@token.command("list")
def list_tokens(file: File = DEFAULT_FILE) -> None:
    """Show whose tokens a file holds; the tokens themselves are nowhere.

    Exit codes: 0 all well, 2 the file cannot be used.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("tenant", "scopes", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("weight", justify="right")
    table.add_column("sha256")
    for entry in _entries(file):
        table.add_row(entry.tenant, " ".join(entry.scopes), f"{entry.weight:g}", entry.sha256[:SHOWN_HASH_CHARS])
    Console().print(table)


def _entries(file: Path) -> list[TokenEntry]:
    tokens = _tokens()
    try:
        return tokens.read(file)
    except tokens.BadTokens as error:
        failures.usage(str(error))


def _tokens() -> ModuleType:
    """The part of the server kit that knows such files."""
    try:
        from shoal_common import tokens
    except ModuleNotFoundError as error:
        failures.usage(f"tokens need the package {error.name}: pip install 'shoal[server]'")
    return tokens


def _write(file: Path, text: str) -> None:
    """Replaces the file at once; only its owner may read it."""
    import os

    fresh = file.with_name(f"{file.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(text)
    fresh.replace(file)
