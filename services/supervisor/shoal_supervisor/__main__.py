"""A supervisor in the background: `python -m shoal_supervisor OPTIONS`, options and reports as JSON.

Reports are lines on stdout until the mesh is ready or cannot be; then stdout is let go, and the supervisor
goes on. What happens is logged on stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys

from shoal_common import logs
from shoal_supervisor import mesh
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.happenings import happenings
from shoal_supervisor.options import MeshOptions
from shoal_supervisor.report import Report
from shoal_supervisor.status_file import MeshStatus

log = logs.get("supervisor")


class _Reporter:
    """Tells the process that waits for the mesh, and the log."""

    def __init__(self) -> None:
        self._last: MeshStatus | None = None
        self._awaited = True

    def status(self, status: MeshStatus) -> None:
        if self._last is not None:
            for line in happenings(self._last, status):
                log.info(line)
        self._last = status
        self._tell(Report(status=status))
        if status.state == "ready":
            log.info("the mesh is ready", address=status.address, seconds=status.ready_s)
            self._let_go()

    def cannot_start(self, reason: str) -> None:
        log.error("the mesh cannot be started", reason=reason)
        self._tell(Report(cannot_start=reason))

    def _tell(self, report: Report) -> None:
        if self._awaited:
            try:
                print(report.model_dump_json(), flush=True)
            except BrokenPipeError:
                self._let_go()

    def _let_go(self) -> None:
        self._awaited = False
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def main() -> int:
    """Exit status: 0 after a stop, 1 when the mesh cannot be started."""
    options = MeshOptions.model_validate_json(sys.argv[1])
    logs.configure("supervisor", options.log_level)
    reporter = _Reporter()
    try:
        with mesh.prepared(options, log.info) as prepared:
            asyncio.run(_supervise(prepared, reporter))
    except CannotStart as error:
        reporter.cannot_start(str(error))
        return 1
    return 0


async def _supervise(prepared: mesh.PreparedMesh, reporter: _Reporter) -> None:
    stop = asyncio.Event()
    if prepared.options.exit_with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _read_parent, stop)
    await mesh.supervise(prepared, reporter.status, stop)


def _read_parent(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
