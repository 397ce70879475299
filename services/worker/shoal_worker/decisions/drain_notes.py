"""What a worker tells its siblings of its drains: only so they know what waits in the lanes that they share."""

from __future__ import annotations

import random
from typing import NamedTuple

from shoal_worker.decisions.lane_choice import News

HEARD_PER_S = 2_000.0
"""Notes that a worker hears: each costs it some 25 µs. Beyond, workers tell only of a share of their drains."""
PERIOD_S = 0.25
QUIET = News(drains_per_s=0.0, told=1.0)
"""Where no sibling is heard."""


class DrainNote(NamedTuple):
    """A drain that brought messages."""

    lane: str
    """The lane's token."""
    work_class: str
    taken: int
    left: int
    """Messages that waited behind them."""
    oldest_s: float
    """How long the first of those taken had waited."""
    newest_s: float
    """How long the last one had; those that were left have waited less."""


class Loudness:
    """All workers of a lane hear about as many notes, so that all tell about the same share."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._heard = 0
        self._since_s = 0.0
        self._news = QUIET

    def heard(self, now_s: float) -> None:
        """A note was heard."""
        self.news(now_s)
        self._heard += 1

    def news(self, now_s: float) -> News:
        """What is known of siblings, as of the last period that is over."""
        past_s = now_s - self._since_s
        if past_s >= PERIOD_S:
            heard_per_s, told = self._heard / past_s, self._news.told
            if self._heard:
                self._news = News(heard_per_s / told, min(1.0, told * HEARD_PER_S / heard_per_s))
            else:
                self._news = QUIET
            self._heard, self._since_s = 0, now_s
        return self._news

    def tells(self) -> bool:
        """Whether a drain is told."""
        return self._news.told >= 1 or self._rng.random() < self._news.told
