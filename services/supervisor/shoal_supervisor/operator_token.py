"""The token with which a mesh's own tools on this machine call it, where it asks for tokens."""

from __future__ import annotations

import os
import secrets

from shoal_supervisor.state import StateFolder


def prepare(state: StateFolder, wanted: bool) -> str:
    """The mesh's token, the same over restarts; empty, and none is kept, unless it is wanted."""
    if not wanted:
        state.operator_token.unlink(missing_ok=True)
        return ""
    kept = read(state)
    if kept is None:
        kept = secrets.token_urlsafe(32)
        state.operator_token.unlink(missing_ok=True)
        with os.fdopen(os.open(state.operator_token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(kept)
    return kept


def read(state: StateFolder) -> str | None:
    """The token of the mesh in a state folder; None when it asks for none."""
    try:
        return state.operator_token.read_text().strip() or None
    except OSError:
        return None
