"""What came of a run: how long texts took, how busy the devices were, and how large their batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.simulator.clock import Clock
from bench.simulator.demand import Demand

BAR_MS = 50.0
BAR_SHARE = 0.99
"""So many of a hundred must be answered within the bar."""


@dataclass(frozen=True)
class Outcome:
    """Figures of one run; times without the warm-up."""

    p50_ms: float
    p99_ms: float
    """Infinite when the run was ended early."""
    busy_share: float
    batch_texts: float
    batch_ms: float
    """Mean predicted milliseconds of a batch."""
    answered: int
    is_within: bool
    """Whether p99 is within the bar."""


class Record:
    """Takes answers. Ends the run once too many are late for the bar to be held."""

    def __init__(self, clock: Clock, demand: Demand, warm_s: float) -> None:
        self._clock = clock
        self._arrivals_s = demand.arrivals_s
        self._first = int(np.searchsorted(demand.arrivals_s, warm_s))
        self._answered_s: list[float] = [0.0] * len(demand)
        measured = len(demand) - self._first
        self._spare = int(measured * (1 - BAR_SHARE))
        self._left = measured
        self.answers = 0
        self.twice = 0
        self.overloaded = False

    def answered(self, index: int, answered_s: float) -> None:
        """A text was answered; a second answer is counted and dropped."""
        if self._answered_s[index]:
            self.twice += 1
            return
        self._answered_s[index] = answered_s
        self.answers += 1
        if index >= self._first:
            self._left -= 1
            if answered_s - self._arrivals_s[index] > BAR_MS / 1e3:
                self._spare -= 1
                if self._spare < 0:
                    self.overloaded = True
                    self._clock.stop()
            if not self._left:
                self._clock.stop()

    @property
    def unanswered(self) -> int:
        """Texts that were never answered."""
        return len(self._answered_s) - self.answers

    def latencies_ms(self) -> np.ndarray:
        """Of every measured text; infinite for one without an answer."""
        answered = np.array(self._answered_s[self._first :])
        waited = (answered - np.array(self._arrivals_s[self._first :])) * 1e3
        return np.where(answered > 0, waited, np.inf)
