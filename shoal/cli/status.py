"""`shoal status`: how a mesh on this machine is doing."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.up import DEFAULT_STATE, State

if TYPE_CHECKING:
    from shoal.models import Model
    from shoal_supervisor.status_file import MeshStatus
    from shoal_supervisor.usage import Runtime, Usage

DEGRADED = 1
NOT_RUNNING = 3
CPU_OVER_S = 0.5
MODELS_WITHIN_S = 3.0
MIB = 1024 * 1024
STATE_STYLES = {"ready": "green", "failed": "red", "restarting": "red", "stopped": "red"}


def status(
    state: State = DEFAULT_STATE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the processes and models of a mesh on this machine.

    Exit codes: 0 all is ready, 1 something is not, 3 no mesh runs in the folder.
    """
    from shoal_supervisor import operator_token, status_file, usage
    from shoal_supervisor.state import StateFolder

    folder = StateFolder(state)
    mesh = status_file.read(folder.status)
    if mesh is None or folder.holder() != mesh.pid:
        typer.echo(f"no mesh runs in {folder.path}")
        raise typer.Exit(NOT_RUNNING)
    runtimes = usage.runtimes(mesh.process("sidecar").pid)
    pids = [mesh.pid, *(each.pid for each in mesh.processes if each.pid), *(each.pid for each in runtimes)]
    used = usage.measure(pids, CPU_OVER_S)
    models = _models(mesh.address, operator_token.read(folder))
    ready = mesh.state == "ready" and mesh.all_ready and models is not None and _all_ready(models)
    if as_json:
        typer.echo(json.dumps(_as_json(mesh, runtimes, used, models, ready), indent=1))
    else:
        _print(mesh, runtimes, used, models, ready)
    if not ready:
        raise typer.Exit(DEGRADED)


def _models(address: str, token: str | None) -> list[Model] | None:
    """The models of the mesh; None when it does not answer."""
    import shoal

    try:
        with shoal.connect(address, token=token) as mesh:
            return mesh.models(timeout=MODELS_WITHIN_S)
    except shoal.ShoalError:
        return None


def _all_ready(models: list[Model]) -> bool:
    return all(model.state == "ready" for model in models)


def _as_json(
    mesh: MeshStatus, runtimes: list[Runtime], used: dict[int, Usage], models: list[Model] | None, ready: bool
) -> dict[str, Any]:
    def usage_of(pid: int | None) -> dict[str, Any] | None:
        return asdict(used[pid]) if pid in used else None

    shown = mesh.model_dump(mode="json")
    shown["all_ready"] = ready
    shown["usage"] = usage_of(mesh.pid)
    for process in shown["processes"]:
        process["usage"] = usage_of(process["pid"])
    shown["runtimes"] = [{**asdict(each), "usage": usage_of(each.pid)} for each in runtimes]
    shown["models"] = None if models is None else [asdict(model) for model in models]
    return shown


def _print(
    mesh: MeshStatus, runtimes: list[Runtime], used: dict[int, Usage], models: list[Model] | None, ready: bool
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table("process", "state", box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("pid", "restarts", "memory", "cpu", "for"):
        table.add_column(title, justify="right")
    table.add_column("last exit")

    def add(name: str, state: str, pid: int | None, restarts: str, since: float | None, last_exit: str) -> None:
        use = used.get(pid) if pid else None
        table.add_row(
            name,
            Text(state.replace("_", " "), STATE_STYLES.get(state, "yellow")),
            str(pid or ""),
            restarts,
            f"{use.memory_bytes / MIB:,.0f} MiB" if use else "",
            f"{use.cpu_percent:.1f} %" if use else "",
            _duration(time.time() - since) if since else "",
            last_exit,
        )

    add("supervisor", "ready", mesh.pid, "", mesh.started, "")
    for process in mesh.processes:
        add(
            process.name,
            process.state,
            process.pid,
            str(process.restarts or ""),
            process.since,
            process.last_exit or "",
        )
        for runtime in runtimes if process.name == "sidecar" else ():
            add(f"  {runtime.name}", "ready", runtime.pid, "", None, "")
    console.print(table)
    total = sum(use.memory_bytes for use in used.values())
    console.print(
        f"{mesh.address}: {'ready' if ready else mesh.state if mesh.state != 'ready' else 'degraded'}", end=""
    )
    console.print(f", {total / MIB:,.0f} MiB in all, logs in {_log_folder(mesh)}", highlight=False, soft_wrap=True)
    if models is None:
        console.print("models: the gateway does not answer")
    for model in models or ():
        console.print(f"model {model.name}: {model.state}", model.error, markup=False, highlight=False)


def _log_folder(mesh: MeshStatus) -> str:
    return mesh.processes[0].log.rsplit("/", 1)[0]


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
