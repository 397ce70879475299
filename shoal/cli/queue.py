"""`shoal queue`: what waits on the mesh, who serves it, and its dead letters."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import failures
from shoal.cli.connection import DEFAULT_TARGET, Target, Timeout, Token
from shoal.cli.default_command import DefaultCommandGroup

if TYPE_CHECKING:
    from rich.console import RenderableType

    import shoal
    from shoal.queue import DeadLetter, Lane, Lanes

WATCH_S = 1.0
CLEARING_TIMEOUT_S = 600.0
LISTED_AT_MOST = 500
STATE_STYLES = {"ready": "green", "failed": "red", "loading": "yellow"}

queue = typer.Typer(cls=DefaultCommandGroup, help="Show the queue (the default), and deal with its dead letters.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sequences = Annotated[
    list[int] | None, typer.Argument(metavar="SEQUENCE...", help="These letters.", show_default=False, min=1)
]
Reason = Annotated[str, typer.Option(help="The letters of this reason.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All letters.")]
ClearingTimeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Longest wait for the answer.")]


@queue.command("show")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, a line long.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and look again each second.")] = False,
    target: Target = DEFAULT_TARGET,
    token: Token = None,
    timeout: Timeout = 30.0,
) -> None:
    """Show lanes with what waits on them, the workers that serve them, and how many dead letters there are."""
    import shoal

    with failures.reported(), shoal.connect(target, token=token) as mesh:
        if not watch:
            _print(mesh.queue.lanes(timeout=timeout), as_json)
        elif as_json:
            while True:
                _print(mesh.queue.lanes(timeout=timeout), as_json)
                time.sleep(WATCH_S)
        else:
            _watch(mesh, timeout)


@queue.command("dead")
def dead(
    limit: Annotated[int, typer.Option(min=1, max=LISTED_AT_MOST, help="Print at most so many.")] = 20,
    after: Annotated[
        int, typer.Option(min=0, metavar="SEQUENCE", help="Only those behind this one.", show_default=False)
    ] = 0,
    reason: Reason = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per letter, one a line.")] = False,
    target: Target = DEFAULT_TARGET,
    token: Token = None,
    timeout: Timeout = 30.0,
) -> None:
    """List dead letters, oldest first: units that could not be served, kept for a week."""
    import shoal

    with failures.reported(), shoal.connect(target, token=token) as mesh:
        page = mesh.queue.dead_letters(limit=limit, after=after, reason=reason, timeout=timeout)
        if as_json:
            for letter in page.letters:
                typer.echo(json.dumps(asdict(letter), ensure_ascii=False))
            return
        from rich.console import Console

        console = Console()
        if not page.letters:
            console.print(
                "no dead letters" + (" behind that one" if after else "") + (" of this reason" if reason else "")
            )
            return
        console.print(_letters(page.letters))
        if page.remaining:
            last = page.letters[-1].sequence
            console.print(f"{page.remaining:,} more: go on with --after {last}", highlight=False)


@queue.command("requeue")
def requeue(
    sequences: Sequences = None,
    reason: Reason = "",
    all_letters: All = False,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    token: Token = None,
    timeout: ClearingTimeout = CLEARING_TIMEOUT_S,
) -> None:
    """Put dead letters back on their lanes, to see whether they can be served now.

    Their callers were answered long ago, so the new results are dropped; what fails again comes back as a
    new letter. Exit code 3: some letters stay, each with the reason.
    """
    import shoal

    chosen = _chosen(sequences, reason, all_letters)
    with failures.reported(), shoal.connect(target, token=token) as mesh:
        done = mesh.queue.requeue(**chosen, timeout=timeout)
        if as_json:
            typer.echo(json.dumps(asdict(done), ensure_ascii=False))
        else:
            typer.echo(f"{_count(done.requeued)} back on the queue")
            for refusal in done.refusals:
                failures.say(f"{refusal.sequence} stays: {refusal.reason}: {refusal.message}")
            if done.refused > len(done.refusals):
                failures.say(f"{done.refused - len(done.refusals):,} more stay")
        if done.refused:
            raise typer.Exit(failures.ITEMS_FAILED)


@queue.command("drop")
def drop(
    sequences: Sequences = None,
    reason: Reason = "",
    all_letters: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many are dropped.")] = False,
    as_json: AsJson = False,
    target: Target = DEFAULT_TARGET,
    token: Token = None,
    timeout: ClearingTimeout = CLEARING_TIMEOUT_S,
) -> None:
    """Delete dead letters with their units. Exit code 3: some of the named ones are not there."""
    import shoal

    chosen = _chosen(sequences, reason, all_letters)
    with failures.reported(), shoal.connect(target, token=token) as mesh:
        if not sequences and not yes:
            counts = mesh.queue.lanes(timeout=timeout).dead_letters
            found = counts.get(reason, 0) if reason else sum(counts.values())
            _confirm(f"Drop {_count(found)}{f' of reason {reason}' if reason else ''}?")
        done = mesh.queue.drop(**chosen, timeout=timeout)
        if as_json:
            typer.echo(json.dumps(asdict(done)))
        else:
            typer.echo(f"{_count(done.dropped)} dropped")
            if done.not_found:
                failures.say(f"not there: {', '.join(map(str, done.not_found))}")
        if done.not_found:
            raise typer.Exit(failures.ITEMS_FAILED)


def _chosen(sequences: list[int] | None, reason: str, all_letters: bool) -> dict[str, Any]:
    if sum((bool(sequences), bool(reason), all_letters)) != 1:
        failures.usage("say which letters: their sequences (see `shoal queue dead`), --reason REASON, or --all")
    return {"sequences": sequences or (), "reason": reason, "all": all_letters}


def _confirm(question: str) -> None:
    if not _is_asked():
        failures.usage("--yes is needed where nobody can be asked")
    typer.confirm(question, abort=True)


def _is_asked() -> bool:
    """Whether somebody sits before it."""
    return sys.stdin.isatty()


def _watch(mesh: shoal.Mesh, timeout: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        while True:
            console.print(_shown(mesh.queue.lanes(timeout=timeout)))
            time.sleep(WATCH_S)
    with Live(_shown(mesh.queue.lanes(timeout=timeout)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(_shown(mesh.queue.lanes(timeout=timeout)), refresh=True)


def _print(lanes: Lanes, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(lanes), ensure_ascii=False))
        return
    from rich.console import Console

    Console().print(_shown(lanes))


def _shown(lanes: Lanes) -> RenderableType:
    """Lanes, workers and the count of dead letters, one under the other."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_lanes(lanes) if lanes.lanes else Text("no lanes: no model is registered\n")]
    if any(lane.workers for lane in lanes.lanes):
        parts.append(_workers(lanes.lanes))
    elif not lanes.scheduler_known:
        parts.append(Text("the scheduler does not answer: workers and states are not known\n", "yellow"))
    elif lanes.lanes:
        parts.append(Text("no workers\n", "yellow"))
    parts += [Text(f"{lane.model}: {lane.error}", "red") for lane in lanes.lanes if lane.error]
    parts.append(_dead(lanes.dead_letters))
    return Group(*parts)


def _lanes(lanes: Lanes) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("lane", "state", "class", box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("waiting", "oldest", "in flight", "wait", "drain"):
        table.add_column(title, justify="right")
    for lane in lanes.lanes:
        for place, each in enumerate(lane.classes):
            first = place == 0
            table.add_row(
                Text(lane.model or f"{lane.token} (retired)") if first else "",
                Text(_state(lane), STATE_STYLES.get(lane.state, "")) if first else "",
                each.priority if each.open else Text(f"{each.priority} (closed)", "red"),
                f"{each.waiting_units:,}",
                _duration(each.oldest_waiting_ms) if each.waiting_units else "",
                f"{each.in_flight_units:,}",
                _duration(lane.wait_ms) if first and lane.wait_ms else "",
                f"{lane.drain_ms_per_second:,.0f} ms/s" if first and lane.drain_ms_per_second else "",
            )
    return table


def _workers(lanes: tuple[Lane, ...]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("worker", "device", "lane", "state", box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("backlog", "busy"):
        table.add_column(title, justify="right")
    rows = sorted(((worker, lane) for lane in lanes for worker in lane.workers), key=lambda row: row[0].worker)
    named = ""
    for worker, lane in rows:
        again = worker.worker == named
        named = worker.worker
        state = f"{worker.state} {worker.progress or worker.error}".strip()
        table.add_row(
            "" if again else Text(worker.worker),
            "" if again else Text(f"{worker.machine} {worker.device}".strip()),
            Text(lane.model or lane.token),
            Text(state, STATE_STYLES.get(worker.state, "")),
            _duration(worker.backlog_ms) if worker.backlog_ms else "",
            "" if again else f"{worker.busy_share:.0%}",
        )
    return table


def _letters(letters: tuple[DeadLetter, ...]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("sequence", justify="right", no_wrap=True)
    table.add_column("kept", no_wrap=True)
    table.add_column("lane", overflow="fold")
    table.add_column("what happened", ratio=1, overflow="fold")
    for letter in letters:
        what = Text(letter.reason, "bold")
        what.append(f" after {_plural(letter.deliveries, 'delivery', 'deliveries')}", "not bold")
        for line in (letter.detail, _unit(letter)):
            if line:
                what.append(f"\n{line}", "not bold")
        table.add_row(
            str(letter.sequence),
            f"{datetime.fromtimestamp(letter.kept_unix_ms / 1000):%m-%d %H:%M:%S}",
            Text(f"{letter.model or letter.lane}\n{letter.priority}"),
            what,
        )
    return table


def _unit(letter: DeadLetter) -> str:
    """What the unit says of itself."""
    said = (letter.tenant and f"tenant {letter.tenant}", letter.request_id and f"request {letter.request_id}")
    items = _plural(letter.items, "item", "items") if letter.items else ""
    return ", ".join(part for part in (*said, items, f"{letter.size_bytes:,} bytes") if part)


def _dead(counts: dict[str, int]) -> RenderableType:
    from rich.text import Text

    if not counts:
        return Text("no dead letters")
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    return Text(f"{_count(sum(counts.values()))} (see `shoal queue dead`): {reasons}", "yellow")


def _state(lane: Lane) -> str:
    return "" if lane.state == "unspecified" else lane.state


def _count(letters: int) -> str:
    return _plural(letters, "dead letter", "dead letters")


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _duration(milliseconds: float) -> str:
    """As people read it: in the unit that leaves a number above 1."""
    for size, unit, digits in ((3_600_000, "h", 1), (60_000, "min", 1), (1_000, "s", 1)):
        if milliseconds >= size:
            return f"{milliseconds / size:.{digits}f} {unit}"
    return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "<1 ms"
