"""What routers and workers share: the clock, the texts, where answers go, and how much was computed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.simulator.clock import Clock
from bench.simulator.demand import Demand
from bench.simulator.hardware import Hardware
from bench.simulator.record import Record


@dataclass(frozen=True)
class Scene:
    """One run's."""

    clock: Clock
    demand: Demand
    record: Record
    rng: random.Random


@dataclass(slots=True)
class Computed:
    """What a device was given."""

    hardware: Hardware
    batches: int = 0
    texts: int = 0
    tokens: int = 0

    def add(self, texts: int, tokens: int) -> None:
        """A batch was sent."""
        self.batches += 1
        self.texts += texts
        self.tokens += tokens
