"""Whose turn it is: interactive work goes first, and bulk work has a floor so that it never starves."""

from __future__ import annotations

from shoal_worker.decisions.unit import BULK, INTERACTIVE

BULK_SHARE = 0.1
"""Share of the device that bulk work gets while interactive work takes all it can."""
TURN_MS = 60.0
"""Bulk work is owed a turn once so much has added up: a batch as long as an interactive one."""


class Turns:
    """Counts device time owed to bulk work."""

    def __init__(self) -> None:
        self._owed_ms = 0.0

    def order(self) -> tuple[str, str]:
        """The classes, first the one whose turn it is."""
        return (BULK, INTERACTIVE) if self._owed_ms >= TURN_MS else (INTERACTIVE, BULK)

    def charge(self, work_class: str, batch_ms: float) -> None:
        """A batch of a class was sent."""
        if work_class == INTERACTIVE:
            self._owed_ms = min(TURN_MS, self._owed_ms + batch_ms * BULK_SHARE)
        else:
            self._owed_ms = 0.0

    def no_bulk(self) -> None:
        """Bulk work had its turn and there was none: nothing is saved up for later."""
        self._owed_ms = 0.0
