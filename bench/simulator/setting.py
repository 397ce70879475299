"""What a run is about: the fleet, what is asked of it, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.simulator.demand import MEAN_TOKENS
from bench.simulator.hardware import TOKEN_US

BATCH_BOUND_MS = 28.0
"""What a batch may take, the same for all systems."""


@dataclass(frozen=True)
class Stall:
    """A device starts nothing for a while."""

    device: int
    at_s: float
    seconds: float


@dataclass(frozen=True)
class Death:
    """A worker is killed, and comes back."""

    device: int
    at_s: float
    back_after_s: float


@dataclass(frozen=True)
class Setting:
    """One run's; all models are on all devices unless the router places them."""

    devices: int = 16
    machine_devices: int = 8
    """Devices that share a sidecar and its exchange."""
    models: int = 8
    law: str = "even"
    seconds: float = 3.0
    warm_s: float = 0.5
    """From the start, not measured."""
    bound_ms: float = BATCH_BOUND_MS
    deadline_s: float = 30.0
    faults: tuple[Stall | Death, ...] = field(default=())

    def texts_per_s(self, load: float) -> float:
        """Texts that are `load` of what the devices could do if a batch cost nothing of its own."""
        return load * self.devices * 1e6 / (TOKEN_US * MEAN_TOKENS)
