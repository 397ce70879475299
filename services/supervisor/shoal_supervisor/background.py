"""Starts a supervisor as a process of its own, and follows it until its mesh is ready."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

from shoal_supervisor import log_files
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.options import MeshOptions
from shoal_supervisor.report import Report
from shoal_supervisor.state import StateFolder
from shoal_supervisor.status_file import MeshStatus

NAME = "supervisor"


def start(options: MeshOptions, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts it in a session of its own; with `exit_with_parent`, its stdin is a pipe that holds it.

    Raises:
        CannotStart: the state folder cannot be written.
    """
    state = StateFolder(options.state)
    state.make()
    log = state.log(NAME)
    log_files.bound(log)
    with log.open("ab") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "shoal_supervisor", options.model_dump_json()],
            stdin=subprocess.PIPE if options.exit_with_parent else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
            start_new_session=True,
        )


def follow(process: subprocess.Popen[str], options: MeshOptions, report: Callable[[MeshStatus], None]) -> MeshStatus:
    """Passes statuses on until the mesh is ready; its status then.

    Raises:
        CannotStart: it does not come up.
    """
    assert process.stdout is not None
    for line in process.stdout:
        told = Report.model_validate_json(line)
        if told.cannot_start:
            process.wait()
            raise CannotStart(told.cannot_start)
        if told.status:
            report(told.status)
            if told.status.state == "ready":
                return told.status
    log = StateFolder(options.state).log(NAME)
    status = process.wait()
    raise CannotStart(f"the supervisor ended with exit status {status}: {log_files.last_words(log)}; see {log}")
