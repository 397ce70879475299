"""The devices: what a batch takes on one, which batches wait in front of it, and when it stalls."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.simulator.clock import Clock

BATCH_MS = 4.0
TOKEN_US = 2.0
JITTER_SIGMA = 0.05
"""Of the logarithm of what a batch takes over what it should."""
SPEED_SIGMA = 0.03
"""Of the logarithm of a device's speed: no two are quite the same."""


class Job(NamedTuple):
    """A batch for the device."""

    tokens: int
    done: Callable[..., None]
    """Called with `args` when it is computed."""
    args: tuple[Any, ...]


class Hardware:
    """One device: one batch at a time, in the order in which they come."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._slowness = math.exp(rng.gauss(0.0, SPEED_SIGMA))
        self._waiting: deque[Job] = deque()
        self._stalled_until_s = 0.0
        self._lives = 0
        self.is_running = False
        self.batches = 0
        self.busy_s = 0.0

    def run(self, job: Job) -> None:
        """Takes a batch."""
        if self.is_running:
            self._waiting.append(job)
        else:
            self._start(job)

    def stall(self, seconds: float) -> None:
        """What starts within so long starts only then."""
        self._stalled_until_s = max(self._stalled_until_s, self._clock.now_s + seconds)

    def reset(self) -> None:
        """Forgets its batches, the running one included."""
        self._lives += 1
        self._waiting.clear()
        self.is_running = False

    def _start(self, job: Job) -> None:
        self.is_running = True
        stalled_s = max(0.0, self._stalled_until_s - self._clock.now_s)
        takes_s = (BATCH_MS + TOKEN_US * job.tokens / 1e3) / 1e3 * self._slowness
        takes_s *= math.exp(self._rng.gauss(0.0, JITTER_SIGMA))
        self.batches += 1
        self.busy_s += takes_s
        self._clock.after(stalled_s + takes_s, self._end, job, self._lives)

    def _end(self, job: Job, life: int) -> None:
        if life != self._lives:
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        else:
            self.is_running = False
        job.done(*job.args)
