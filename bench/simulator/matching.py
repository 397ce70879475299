"""Which sibling a unit should go to: the rule of the sidecar's exchange (`matching.rs`), once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MARGIN_MS = 2.0
"""A unit moves when it starts sooner by at least so much."""


@dataclass(slots=True)
class Taker:
    """A worker that may take units, as it stands now."""

    worker: int
    free_in_ms: float
    room_ms: float

    def take(self, cost_ms: float) -> None:
        """Counts a unit in that it will be granted."""
        self.free_in_ms += cost_ms
        self.room_ms -= cost_ms


def soonest(takers: Sequence[Taker], owner: int, cost_ms: float, starts_in_ms: float) -> Taker | None:
    """The sibling that would start an offered unit soonest, if that is sooner than its owner would by the margin
    and it has room; among equals the one with the most."""
    able = [
        taker
        for taker in takers
        if taker.worker != owner
        and taker.room_ms > 0
        and taker.room_ms >= cost_ms
        and taker.free_in_ms + MARGIN_MS <= starts_in_ms
    ]
    return min(able, key=lambda taker: (taker.free_in_ms, -taker.room_ms), default=None)


def heir(takers: Sequence[Taker], owner: int) -> Taker | None:
    """The sibling that takes over a unit whose owner is gone, whether it has room or not."""
    able = [taker for taker in takers if taker.worker != owner]
    return min(able, key=lambda taker: (taker.free_in_ms, -taker.room_ms), default=None)
