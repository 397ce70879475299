"""What a person chooses about a mesh before it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_STATE = Path(".shoal")
LogLevel = Literal["debug", "info", "warning", "error"]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class MeshOptions(BaseModel):
    """The choices behind `shoal up`; they travel to a background supervisor as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Path = DEFAULT_STATE
    port: int = Field(default=50_051, ge=1, le=65_535)
    """The gateway's port on 127.0.0.1."""
    workers: int = Field(default=1, ge=0, le=64)
    """Workers on the CPU."""
    cores: int = Field(default_factory=_cores, ge=1)
    """Cores that the workers share."""
    sim: Path | None = None
    """How simulated devices behave: a sim file, for the sidecar."""
    sim_workers: int = Field(default=0, ge=0, le=64)
    """Workers on simulated devices, beside those on the CPU."""
    models: tuple[str, ...] = ("minilm",)
    """Names of the catalogue, or paths of profile files."""
    tokens: Path | None = None
    """The file of the tokens that callers need; without one every process of this machine may call."""
    trace_ratio: float = Field(default=0.01, ge=0, le=1)
    log_level: LogLevel = "info"
    nats_url: str = Field(default="", pattern=r"^(nats://\S+)?$")
    """A broker that others run, in place of one of the mesh's own."""
    nats_token: str = ""
    exit_with_parent: bool = False
    """The supervisor itself ends when its standard input closes."""

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"
