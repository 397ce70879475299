"""`shoal models`: what the mesh serves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import failures
from shoal.cli.connection import DEFAULT_TARGET, Target, Timeout, Token
from shoal.cli.default_command import DefaultCommandGroup

if TYPE_CHECKING:
    from rich.table import Table

    import shoal
    from shoal.models import Model

REVISION_CHARS = 12
STATE_STYLES = {"ready": "green", "failed": "red", "loading": "yellow"}

models = typer.Typer(cls=DefaultCommandGroup, help="List the models of the mesh (the default), and change them.")


@models.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(help="Only this one, by name or alias.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per model, one a line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and print again at each change.")] = False,
    target: Target = DEFAULT_TARGET,
    token: Token = None,
    timeout: Timeout = 30.0,
) -> None:
    """Print the models of the mesh."""
    import shoal

    with failures.reported(), shoal.connect(target, token=token) as mesh:
        for found in _watched(mesh, name) if watch else _once(mesh, name, timeout):
            if as_json:
                for model in found:
                    typer.echo(json.dumps(asdict(model), ensure_ascii=False))
            else:
                _print(found)


def _once(mesh: shoal.Mesh, name: str | None, timeout: float) -> Iterator[list[Model]]:
    yield [mesh.model(name, timeout=timeout)] if name else mesh.models(timeout=timeout)


def _watched(mesh: shoal.Mesh, name: str | None) -> Iterator[list[Model]]:
    """The models, or the one of that name, whenever they are not what was last given."""
    last: list[Model] | None = None
    for found in mesh.watch_models():
        chosen = [model for model in found if name is None or name in (model.name, *model.aliases)]
        if chosen != last:
            yield chosen
            last = chosen


def _print(found: list[Model]) -> None:
    from rich.console import Console

    console = Console()
    if not found:
        console.print("no models")
        return
    console.print(_table(found))
    for model in found:
        if model.error:
            console.print(f"{model.name}: {model.error}", markup=False, highlight=False)


def _table(found: Iterable[Model]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "state", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("dims", justify="right")
    table.add_column("max tokens", justify="right")
    table.add_column("revision")
    table.add_column("aliases")
    for model in found:
        table.add_row(
            Text(model.name),
            Text(model.state, STATE_STYLES.get(model.state, "")),
            str(model.dimensions),
            str(model.max_tokens),
            Text(model.revision.removeprefix("sha256:")[:REVISION_CHARS]),
            Text(", ".join(model.aliases)),
        )
    return table
