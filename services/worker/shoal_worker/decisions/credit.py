"""How many messages a pull asks for: predicted milliseconds turned into a count."""

from __future__ import annotations

PULL_MESSAGES = 256
"""At most so many a pull, however small they are: the estimate may be wrong."""


def messages(room_ms: float, unit_ms: float) -> int:
    """Messages that fill `room_ms`, at least one while there is room."""
    if room_ms <= 0:
        return 0
    return max(1, min(PULL_MESSAGES, int(room_ms / max(unit_ms, 1e-3))))
