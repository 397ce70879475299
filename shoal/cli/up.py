"""`shoal up`: a whole mesh on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.cli import failures

if TYPE_CHECKING:
    from shoal_supervisor.display import StartDisplay
    from shoal_supervisor.mesh import PreparedMesh
    from shoal_supervisor.options import MeshOptions
    from shoal_supervisor.status_file import MeshStatus

State = Annotated[
    Path, typer.Option("--state", envvar="SHOAL_STATE_DIR", metavar="DIR", help="The mesh's state folder.")
]
DEFAULT_STATE = Path(".shoal")
CANNOT_START = 1


def up(
    port: Annotated[int, typer.Option(min=1, max=65_535, help="The public port, on 127.0.0.1.")] = 50_051,
    state: State = DEFAULT_STATE,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Workers; they share the cores.")] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model of the catalogue, or a profile file; repeatable.", show_default="minilm"
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is ready, and let it run.")] = False,
    first_request: Annotated[
        bool | None,
        typer.Option(
            "--first-request/--no-first-request",
            help="Send one text when it is ready, and show the answer.",
            show_default="on a terminal",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="SHOAL_TOKENS",
            metavar="FILE",
            help="Ask callers for the tokens of this file (see `shoal token`).",
            show_default=False,
        ),
    ] = None,
    sim: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Simulate devices as this file says, for tests of scheduling: models that name the runtime sim "
            "answer made-up values in the time that it sets.",
            show_default=False,
        ),
    ] = None,
    sim_workers: Annotated[
        int, typer.Option(min=0, max=64, help="Workers on simulated devices, beside the others.")
    ] = 0,
    trace_ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of requests that are traced.")] = 0.01,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What is logged.")] = "info",
    nats: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="A JetStream broker that you run (nats://host:port, max_payload 4 MiB), in place of an embedded one. "
            "Its token is read from SHOAL_NATS_TOKEN.",
        ),
    ] = "",
) -> None:
    """Run a whole mesh on this machine until Ctrl-C.

    Exit codes: 0 it ran and was stopped (or, detached, is ready), 1 it cannot be started.
    """
    try:
        from rich.console import Console

        import shoal_supervisor.mesh  # noqa: F401 - imports what a mesh needs
        from shoal_supervisor.display import StartDisplay
        from shoal_supervisor.errors import CannotStart
        from shoal_supervisor.options import MeshOptions
    except ModuleNotFoundError as error:
        failures.say(f"running a mesh needs the package {error.name}: pip install 'shoal[server,torch]'")
        raise typer.Exit(CANNOT_START) from None

    options = MeshOptions(
        state=state,
        port=port,
        workers=workers,
        models=tuple(model or ["minilm"]),
        tokens=tokens,
        sim=sim,
        sim_workers=sim_workers,
        trace_ratio=trace_ratio,
        log_level=log_level,
        nats_url=nats,
        nats_token=os.environ.get("SHOAL_NATS_TOKEN", "") if nats else "",
    )
    wants_request = sys.stdout.isatty() if first_request is None else first_request
    try:
        with StartDisplay(Console(), options.models) as display:
            (_in_background if detach else _here)(options, display, wants_request)
    except CannotStart as error:
        failures.say(str(error))
        raise typer.Exit(CANNOT_START) from None
    except KeyboardInterrupt:
        raise typer.Exit(failures.INTERRUPTED) from None


def _here(options: MeshOptions, display: StartDisplay, wants_request: bool) -> None:
    import asyncio

    from shoal_supervisor import mesh

    with mesh.prepared(options, display.say) as prepared:
        asyncio.run(_supervise(prepared, display, wants_request))
    display.say("Stopped.")


async def _supervise(prepared: PreparedMesh, display: StartDisplay, wants_request: bool) -> None:
    import asyncio

    from shoal_supervisor import mesh

    greeting: list[asyncio.Task[None]] = []

    def report(status: MeshStatus) -> None:
        display.update(status)
        if status.state == "ready" and not greeting:
            greeting.append(asyncio.create_task(_greet(status, prepared, display, wants_request)))

    try:
        await mesh.supervise(prepared, report, asyncio.Event())
    finally:
        for task in greeting:
            task.cancel()


async def _greet(status: MeshStatus, prepared: PreparedMesh, display: StartDisplay, wants_request: bool) -> None:
    display.say(_ready_line(status))
    if wants_request:
        await _show_request(status.address, sorted(prepared.models)[0], prepared.operator_token, display)
    display.say("Ctrl-C stops it.")


def _in_background(options: MeshOptions, display: StartDisplay, wants_request: bool) -> None:
    import asyncio
    import signal

    from shoal_supervisor import background, mesh

    # What can be said at once is said here, and a build shows its progress here.
    with mesh.prepared(options, display.say) as prepared:
        models, token = sorted(prepared.models), prepared.operator_token
    supervisor = background.start(options)
    try:
        status = background.follow(supervisor, options, display.update)
    except KeyboardInterrupt:
        supervisor.send_signal(signal.SIGTERM)
        raise
    display.say(_ready_line(status))
    if wants_request:
        asyncio.run(_show_request(status.address, models[0], token, display))
    display.say(f"`shoal status` shows it, `shoal down` ends it{_state_hint(options.state)}.")


async def _show_request(address: str, model: str, token: str, display: StartDisplay) -> None:
    from shoal.errors import ShoalError
    from shoal_supervisor.first_request import first_request

    try:
        display.say(await first_request(address, model, token))
    except ShoalError as error:
        display.say(f"The first request failed: {error}")


def _ready_line(status: MeshStatus) -> str:
    target = "" if status.address == "127.0.0.1:50051" else f" --target {status.address}"
    return f'Shoal is ready at {status.address} after {status.ready_s:.1f} s. Call it: shoal encode "a text"{target}'


def _state_hint(state: Path) -> str:
    return "" if state == DEFAULT_STATE else f" (with --state {state})"
