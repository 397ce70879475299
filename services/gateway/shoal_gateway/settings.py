"""The gateway's settings."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import ClassVar

from pydantic import Field, ValidationInfo, field_validator

from shoal_common import tokens as token_entries
from shoal_common.settings import ServiceSettings, is_local


class GatewaySettings(ServiceSettings):
    """Read from SHOAL_*; without a scheduler every lane is taken to be open."""

    knows_callers: ClassVar[bool] = True

    registry: str = Field(min_length=1)
    gateway: str = Field(default_factory=lambda: secrets.token_hex(8), pattern=r"^[a-z0-9-]{1,64}$")
    """This replica's name, and the end of its reply subject; random for each process if not given."""
    tokens: str = Field(default="", validate_default=True)
    """The file of tokens (see shoal_common/tokens.py); without one every caller of this machine may do all."""

    blobs: str = ""
    """Where items that are too large for the queue are kept meanwhile: a folder's path, or a URL that obstore knows,
    the same for workers. Without it an item has at most as many bytes as a text may have."""
    operator_sha256: str = ""
    """The hash of the token that the mesh's own tools have, valid beside the file's."""

    @field_validator("tokens")
    @classmethod
    def _readable_and_there_where_needed(cls, tokens: str, info: ValidationInfo) -> str:
        listen = info.data.get("listen", "")
        if not tokens and not is_local(listen or "unix:"):
            raise ValueError(
                f"is needed to listen on {listen!r}, which can be reached from other machines; "
                "without tokens listen on 127.0.0.1, [::1] or a Unix socket"
            )
        if tokens:
            token_entries.read(Path(tokens))
        return tokens
