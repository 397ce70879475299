"""Ids remembered for a while: finished units, cancelled units."""

from __future__ import annotations

import heapq

CAPACITY = 200_000
"""Finished units are remembered at up to 20,000 a second; a forgotten id costs at most a needless run."""


class Remembered:
    """Ids with a time at which each is forgotten. Times are seconds of any one clock."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._until_s: dict[str, float] = {}
        self._soonest: list[tuple[float, str]] = []
        """A heap with an entry for each time that an id was added."""

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, key: str, until_s: float) -> None:
        """Remembers an id, in place of what was known of it; beyond the capacity, what ends soonest is forgotten."""
        self._until_s[key] = until_s
        heapq.heappush(self._soonest, (until_s, key))
        if len(self._soonest) > self._capacity:
            self._forget_soonest()

    def holds(self, key: str, now_s: float) -> bool:
        """Whether an id is remembered still."""
        return self._until_s.get(key, now_s) > now_s

    def forget_old(self, now_s: float) -> None:
        """Frees the memory of those whose time is over."""
        while self._soonest and self._soonest[0][0] <= now_s:
            self._forget_soonest()

    def _forget_soonest(self) -> None:
        until_s, key = heapq.heappop(self._soonest)
        if self._until_s.get(key) == until_s:  # Else it was added again, for another time.
            del self._until_s[key]
