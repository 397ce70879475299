"""Whose turn it is: interactive work goes first, and bulk work has a floor so that it never starves."""

from __future__ import annotations

from shoal_worker.decisions.unit import BULK, INTERACTIVE

BULK_SHARE = 0.1
"""Share of the device that bulk work gets while interactive work takes all it can."""


class Turns:
    """Counts device time owed to bulk work: a turn once a batch as long as an interactive one has added up."""

    def __init__(self, turn_ms: float) -> None:
        self._turn_ms = turn_ms
        self._owed_ms = 0.0

    def order(self) -> tuple[str, str]:
        """The classes, first the one whose turn it is."""
        return (BULK, INTERACTIVE) if self._owed_ms >= self._turn_ms else (INTERACTIVE, BULK)

    def charge(self, work_class: str, batch_ms: float) -> None:
        """A batch of a class was sent."""
        if work_class == INTERACTIVE:
            self._owed_ms = min(self._turn_ms, self._owed_ms + batch_ms * BULK_SHARE)
        else:
            self._owed_ms = 0.0

    def no_bulk(self) -> None:
        """Bulk work had its turn and there was none: nothing is saved up for later."""
        self._owed_ms = 0.0
