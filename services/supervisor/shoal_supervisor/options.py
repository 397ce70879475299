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
    workers: int = Field(default=1, ge=1, le=64)
    cores: int = Field(default_factory=_cores, ge=1)
    """Cores that the workers share."""
    models: tuple[str, ...] = ("minilm",)
    """Names of the catalogue, or paths of profile files."""
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
