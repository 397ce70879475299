"""The worker's settings: which device it drives, and what it serves there."""

from __future__ import annotations

import os
import socket

import psutil
from pydantic import Field, field_validator

from shoal_common.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """SHOAL_* variables of one worker."""

    worker: str = Field(default="worker-0", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Its name: unique in the mesh, stable over restarts."""
    machine: str = Field(default_factory=socket.gethostname)
    """The machine whose sidecar it shares with its siblings."""
    pool: str = "default"
    """The pool of lanes that it serves."""
    sidecar: str
    """The sidecar's address: unix:/path."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda:[0-9]+|sim:[0-9]+)$")
    """A simulated one (sim:0) runs models whose profile names sim, as the sidecar's sim file says."""
    streams: int = Field(default=0, ge=0, le=64)
    """Batches at once when work waits; 0 is one a core on CPUs and one on other devices."""
    threads: int = Field(default=0, ge=0, le=256)
    """Threads of a batch that runs alone; 0 is all cores."""
    memory_bytes: int = Field(default=0, ge=0)
    """Memory that models may take; 0 is half of the machine's on CPUs and unknown on other devices."""
    blobs: str = ""
    """Where gateways keep items that are too large for the queue: a folder's path, or a URL that obstore knows. The
    sidecar must find a folder under the same path."""
    models: str = ""
    """Names or aliases, by commas, of models that are held whatever the scheduler plans."""

    @field_validator("sidecar")
    @classmethod
    def _is_local(cls, sidecar: str) -> str:
        if not sidecar.startswith("unix:"):
            raise ValueError(f"{sidecar!r} is no Unix socket: the sidecar is on this machine (unix:/path)")
        return sidecar

    @property
    def is_cpu(self) -> bool:
        """Whether the device is this machine's cores."""
        return self.device == "cpu"

    @property
    def streams_or_auto(self) -> int:
        """Batches at once, never 0."""
        return self.streams or (_cores() if self.is_cpu else 1)

    @property
    def threads_or_auto(self) -> int:
        """Threads of a lone batch, never 0."""
        return self.threads or _cores()

    @property
    def memory_or_auto(self) -> int:
        """Bytes that models may take; 0 where that is not known."""
        return self.memory_bytes or (psutil.virtual_memory().total // 2 if self.is_cpu else 0)

    @property
    def held_models(self) -> list[str]:
        """The names in `models`."""
        return [name.strip() for name in self.models.split(",") if name.strip()]


def _cores() -> int:
    return len(os.sched_getaffinity(0))
