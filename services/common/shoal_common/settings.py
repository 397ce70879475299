"""Settings that every service has: read from SHOAL_* environment variables, checked before anything starts."""

from __future__ import annotations

import ipaddress
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """What every service needs. A service adds its own fields in a subclass."""

    model_config = SettingsConfigDict(env_prefix="SHOAL_", extra="ignore", frozen=True)

    listen: str
    """Where its gRPC server listens: unix:/path or host:port."""
    nats_url: str = "nats://127.0.0.1:4222"
    nats_token: str = ""
    registry: str = ""
    """The registry's address; empty for the registry itself."""
    scheduler: str = ""
    """The scheduler's address; empty where it is not needed."""
    replicas: int = Field(default=1, ge=1, le=5)
    """Copies that JetStream keeps of every stream."""
    exit_with_parent: bool = False
    """End when standard input closes: set by the supervisor, whose pipe it is."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    trace_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of requests that are traced."""
    trace_file: str = ""
    """Where spans are appended as JSON lines when no OTLP endpoint is set."""

    knows_callers: ClassVar[bool] = False
    """Whether the service can ask for tokens: then it says itself whether it may listen to other machines."""

    @field_validator("listen")
    @classmethod
    def _open_only_to_this_machine(cls, listen: str) -> str:
        if not cls.knows_callers and not is_local(listen):
            raise ValueError(
                f"{listen!r} can be reached from other machines, and no tokens or mTLS are configured: "
                "listen on 127.0.0.1, [::1] or a Unix socket"
            )
        return listen


def is_local(address: str) -> bool:
    """Whether only processes of this machine can reach an address."""
    if address.startswith("unix:"):
        return True
    host = address.rsplit(":", 1)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
