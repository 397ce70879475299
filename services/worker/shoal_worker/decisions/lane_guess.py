"""What waits in a lane's class, guessed between the moments at which it is known."""

from __future__ import annotations

from dataclasses import dataclass

RATE_WEIGHT = 0.3
"""Of one drain in the rate at which a lane fills."""


@dataclass(slots=True)
class Guess:
    """A lane that was emptied fills at the rate at which it filled before. Times are seconds on one clock."""

    left: float = 0.0
    """Messages that waited when it was last known."""
    since_s: float = float("-inf")
    """Then; where some were left, when the oldest of them came."""
    rate: float = 0.0
    """Messages a second; 0 before a drain brought any."""

    def fill(self, now_s: float) -> float:
        """Messages that wait now."""
        return self.left + (self.rate * (now_s - self.since_s) if self.rate else 0.0)

    def age_s(self, now_s: float) -> float:
        """How long the oldest of them has waited; 0 when none does."""
        if self.left >= 1:
            return now_s - self.since_s
        return max(0.0, now_s - self.since_s - 1 / self.rate) if self.rate else 0.0

    def claimed(self, messages: float, now_s: float) -> None:
        """Somebody pulls so many."""
        self.left = max(0.0, self.fill(now_s) - messages)
        self.since_s = now_s

    def drained(self, taken: int, left: int, oldest_s: float, newest_s: float, now_s: float) -> None:
        """A drain brought messages that came between two moments, and left others that came after them."""
        if oldest_s < now_s:
            rate = (taken + left) / (now_s - oldest_s)
            self.rate += RATE_WEIGHT * (rate - self.rate) if self.rate else rate
        self.left, self.since_s = left, newest_s if left else now_s

    def emptied(self, now_s: float) -> None:
        """There is nothing, though there may have been a moment ago."""
        self.left, self.since_s = 0.0, now_s

    def seen(self, now_s: float) -> None:
        """Something waits."""
        if self.fill(now_s) < 1:
            self.left, self.since_s = 1.0, now_s
