"""`shoal encode`: texts in, vectors out."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from shoal.choices import Priority, Role, Truncation, Type
from shoal.cli import failures, texts_in, vectors_out
from shoal.cli.connection import DEFAULT_TARGET, Target, Timeout, Token

if TYPE_CHECKING:
    import shoal
    from shoal.results import Outcome

PROGRESS_FROM_ITEMS = 64
"""Fewer are done before a bar would be seen."""


def encode(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts; none or - reads stdin, a text a line.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="JSONL",
            help='Texts from a file: a JSON string a line, or {"text": …, "id": …}; - is stdin.',
            show_default=False,
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="A model's name or alias.")] = "minilm",
    adapter: Annotated[
        str | None, typer.Option(help="An adapter of the model: name or name@version.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per text, one a line.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="NPY", help="Write the vectors as a numpy array.", show_default=False),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Keep so many dimensions.", show_default="the model's")
    ] = None,
    element_type: Annotated[Type, typer.Option("--type", help="Element type of the vectors.")] = "f32",
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale to length 1.", show_default="the model's")
    ] = None,
    role: Annotated[
        Role | None, typer.Option(help="Which of the model's prompts goes first.", show_default="the model's")
    ] = None,
    truncation: Annotated[
        Truncation, typer.Option(help="Cut texts that are too long at the end, or fail them.")
    ] = "end",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a text.", show_default="the model's")
    ] = None,
    priority: Annotated[Priority, typer.Option(help="Bulk work yields to interactive.")] = "interactive",
    timeout: Timeout = 30.0,
    target: Target = DEFAULT_TARGET,
    token: Token = None,
) -> None:
    """Turn texts into vectors.

    Exit codes: 0 all well, 1 the call failed, 2 wrong usage or input, 3 some texts failed.
    """
    with failures.reported(), ExitStack() as stack:
        source, total = _source(stack, texts or [], file)
        if out is not None and not out.parent.is_dir():
            failures.usage(f"--out {out}: there is no folder {out.parent}")
        import shoal

        mesh = stack.enter_context(shoal.connect(target, token=token))
        options: dict[str, Any] = {
            "model": model,
            "adapter": adapter,
            "dimensions": dimensions,
            "type": element_type,
            "normalize": normalize,
            "role": role,
            "truncation": truncation,
            "max_tokens": max_tokens,
            "priority": priority,
            "timeout": timeout,
        }
        names: list[str | int | None] = []
        kept: list[Outcome] = []
        failed = 0
        count = 0
        advance = stack.enter_context(_progress(total, alone=out is not None and not as_json))
        for outcome in mesh.encode_stream(_texts(source, names), **options):
            count += 1
            advance()
            name = names[outcome.index]
            failed += isinstance(outcome, shoal.ItemError)
            if out is not None:
                kept.append(outcome)
            if as_json:
                typer.echo(vectors_out.as_json(outcome, name))
            elif isinstance(outcome, shoal.ItemError):
                failures.say(f"text {outcome.index if name is None else name}: {outcome}")
            elif out is None:
                typer.echo(vectors_out.for_people(outcome, name, element_type))
        if out is not None:
            _store(out, kept, mesh, options, quiet=as_json)
    if failed:
        failures.say(f"{failed} of {count} texts failed")
        raise typer.Exit(failures.ITEMS_FAILED)


def _source(stack: ExitStack, texts: list[str], file: Path | None) -> tuple[Iterator[texts_in.NamedText], int | None]:
    """The texts and how many there are, None if that shows only at the end."""
    if file is not None and texts:
        failures.usage("give texts or --file, not both")
    if file is not None and str(file) != "-":
        lines = stack.enter_context(file.open("rb"))
        return texts_in.from_jsonl(lines, str(file)), _count_lines(lines)
    if texts and texts != ["-"]:
        return iter([texts_in.NamedText(text) for text in texts]), len(texts)
    if not texts and file is None and sys.stdin.isatty():
        failures.usage("no texts: give some, pipe them in, or name a --file (see shoal encode --help)")
    # Read whole and here: a thread that waits for a terminal would outlive an interrupt.
    held = sys.stdin.buffer.readlines()
    read = texts_in.from_lines if file is None else texts_in.from_jsonl
    return read(held, "stdin"), len(held)


def _count_lines(lines: IO[bytes]) -> int | None:
    if not lines.seekable():
        return None
    count = sum(1 for line in lines if line.strip())
    lines.seek(0)
    return count


def _texts(source: Iterator[texts_in.NamedText], names: list[str | int | None]) -> Iterator[str]:
    """The texts; their names go to `names`."""
    for text, name in source:
        names.append(name)
        yield text


def _store(out: Path, kept: list[Outcome], mesh: shoal.Mesh, options: dict[str, Any], *, quiet: bool) -> None:
    from shoal.results import EncodeAnswer

    vectors = EncodeAnswer(kept, []).vectors(options["type"]) if kept else mesh.encode([], **options)
    vectors_out.store(out, vectors)
    if not quiet:
        typer.echo(f"wrote {out}: {' x '.join(map(str, vectors.shape))} {vectors.dtype}")


@contextmanager
def _progress(total: int | None, *, alone: bool) -> Iterator[Any]:
    """A function to call for each finished text; it moves a bar on stderr if that is a terminal.

    There is none beside printed results, unless these go to a file: they could end on the same terminal.
    """
    few = total is not None and total < PROGRESS_FROM_ITEMS
    if few or not sys.stderr.isatty() or not (alone or stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("encoding", total=total)
        yield lambda: bar.advance(task)
