"""What a background supervisor tells the process that started it: one JSON line each."""

from __future__ import annotations

from pydantic import BaseModel

from shoal_supervisor.status_file import MeshStatus


class Report(BaseModel):
    """Exactly one of the two."""

    status: MeshStatus | None = None
    cannot_start: str | None = None
