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
    """Figures of one run."""

    p50_ms: float
    p99_ms: float
    """Of the texts that came after the warm-up; both infinite where the run was given up."""
    busy_share: float
    """Of the devices, after the warm-up and while texts came."""
    batch_texts: float
    """Mean of the batches."""
    batch_ms: float
    """Mean of what they cost by the curve."""
    texts_per_s: float
    """That were answered."""

    def holds(self, bar_ms: float) -> bool:
        """Whether p99 is within a bar."""
        return self.p99_ms <= bar_ms


class Record:
    """Takes answers. Gives the run up once too many are late for the bar to be held."""

    def __init__(self, clock: Clock, demand: Demand, warm_s: float, bar_ms: float = BAR_MS) -> None:
        self._clock = clock
        self._arrivals_s = demand.arrivals_s
        self._bar_s = bar_ms / 1e3
        self._first = int(np.searchsorted(demand.arrivals_s, warm_s))
        self._over_s = [0.0] * len(demand)
        self._spare = int((len(demand) - self._first) * (1 - BAR_SHARE))
        self._left = len(demand)
        self.answered_count = 0
        self.repeats = 0
        """Answers that came again: dropped, as the gateway does."""
        self.expired_count = 0
        self.is_given_up = False

    def answered(self, index: int, at_s: float) -> None:
        """A text was answered."""
        if self._over_s[index]:
            self.repeats += 1
            return
        self._over_s[index] = at_s
        self.answered_count += 1
        if index >= self._first and at_s - self._arrivals_s[index] > self._bar_s:
            self._late()
        self._one_less()

    def is_over(self, index: int) -> bool:
        """Whether a text was answered, or has expired."""
        return self._over_s[index] > 0

    def expired(self, index: int) -> None:
        """A text's deadline passed before it ran."""
        if not self._over_s[index]:
            self._over_s[index] = float("inf")
            self.expired_count += 1
            self._late()
            self._one_less()

    @property
    def lost_count(self) -> int:
        """Texts that were neither answered nor expired."""
        return self._left

    def percentiles_ms(self) -> tuple[float, float]:
        """p50 and p99 of the texts that came after the warm-up."""
        if self.is_given_up:
            return float("inf"), float("inf")
        over_s = np.array(self._over_s[self._first :])
        waited_ms = np.where(over_s > 0, over_s - np.array(self._arrivals_s[self._first :]), np.inf) * 1e3
        p50, p99 = np.percentile(waited_ms, [50, 100 * BAR_SHARE], method="higher")
        return float(p50), float(p99)

    def _late(self) -> None:
        self._spare -= 1
        if self._spare < 0:
            self.is_given_up = True
            self._clock.stop()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._clock.stop()
