"""What changed between two statuses, told as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from shoal_supervisor.status_file import MeshStatus, ProcessStatus


def happenings(before: MeshStatus, after: MeshStatus) -> Iterator[str]:
    """One line for each thing worth telling."""
    known = {process.name: process for process in before.processes}
    for new in after.processes:
        if (old := known.get(new.name)) and (line := _happening(old, new)):
            yield line


def _happening(old: ProcessStatus, new: ProcessStatus) -> str | None:
    if new.restarts > old.restarts:
        return f"{new.name} ended ({new.last_exit}), starting it again"
    if old.state == new.state:
        return None
    if new.state == "not_serving":
        return f"{new.name} does not serve"
    if new.state == "ready":
        if old.state == "not_serving":
            return f"{new.name} serves again"
        return f"{new.name} is ready after {new.ready_s or 0:.1f} s"
    return None
