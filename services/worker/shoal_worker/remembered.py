"""Ids remembered for a while: finished units, cancelled units."""

from __future__ import annotations


class Remembered:
    """Ids with a time at which each is forgotten. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, key: str, until_s: float) -> None:
        """Remembers an id, in place of what was known of it."""
        self._until_s.pop(key, None)
        self._until_s[key] = until_s

    def holds(self, key: str, now_s: float) -> bool:
        """Whether an id is remembered still."""
        return self._until_s.get(key, now_s) > now_s

    def forget_old(self, now_s: float) -> None:
        """Frees the memory of those whose time is over, oldest first, up to the first that stays."""
        while self._until_s:
            oldest = next(iter(self._until_s))
            if self._until_s[oldest] > now_s:
                return
            del self._until_s[oldest]
