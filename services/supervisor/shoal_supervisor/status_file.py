"""The mesh's status as others read it: status.json in the state folder, replaced whole at each change."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shoal_supervisor.lifecycle import State


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProcessStatus(_Frozen):
    """One process. Times are seconds since 1970."""

    name: str
    state: State
    pid: int | None
    restarts: int
    since: float
    ready_s: float | None
    """How long its last start took; None until it was ready."""
    last_exit: str | None
    listen: str
    log: str


class MeshStatus(_Frozen):
    """The whole mesh. Times are seconds since 1970."""

    state: Literal["starting", "ready", "failed", "stopping", "stopped"]
    """ready: every process was ready once, and so were the models asked for."""
    reason: str | None
    """Why it failed."""
    pid: int
    """The supervisor's."""
    address: str
    """Where clients connect."""
    started: float
    ready_s: float | None
    """How long the start took; None until it was ready."""
    processes: tuple[ProcessStatus, ...]

    def process(self, name: str) -> ProcessStatus:
        """A process by its name; KeyError if the mesh has none of it."""
        for process in self.processes:
            if process.name == name:
                return process
        raise KeyError(name)

    @property
    def all_ready(self) -> bool:
        """Whether every process serves now."""
        return all(process.state == "ready" for process in self.processes)


def write(path: Path, status: MeshStatus) -> None:
    """Replaces the file: a reader sees the old one or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(status.model_dump_json(indent=1) + "\n")
    fresh.replace(path)


def read(path: Path) -> MeshStatus | None:
    """The last status written; None when there is none that can be read."""
    try:
        return MeshStatus.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
