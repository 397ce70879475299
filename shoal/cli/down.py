"""`shoal down`: ends the mesh of a state folder."""

from __future__ import annotations

import typer

from shoal.cli import failures
from shoal.cli.up import DEFAULT_STATE, State

STOP_S = 45.0
NOT_STOPPED = 1


def down(state: State = DEFAULT_STATE) -> None:
    """End the mesh that runs in a state folder; its models and queue stay for the next `shoal up`.

    Exit codes: 0 nothing runs there now, 1 it could not be ended.
    """
    from shoal_supervisor.shutdown import NotStopped, stop_mesh
    from shoal_supervisor.state import StateFolder

    folder = StateFolder(state)
    try:
        stopped = stop_mesh(folder, STOP_S)
    except NotStopped as error:
        failures.say(str(error))
        raise typer.Exit(NOT_STOPPED) from None
    typer.echo(f"stopped the mesh in {folder.path}" if stopped else f"nothing runs in {folder.path}")
