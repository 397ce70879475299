"""The gateway's settings."""

from __future__ import annotations

import secrets

from pydantic import Field

from shoal_common.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """Read from SHOAL_*; without a scheduler every lane is taken to be open."""

    registry: str = Field(min_length=1)
    gateway: str = Field(default_factory=lambda: secrets.token_hex(8), pattern=r"^[a-z0-9-]{1,64}$")
    """This replica's name, and the end of its reply subject; random for each process if not given."""
