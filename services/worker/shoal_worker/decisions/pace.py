"""What the hardware sets the pace for: how long a batch of a class may take, and how early things are begun."""

from __future__ import annotations

from dataclasses import dataclass

from shoal_common.profile import Tuned
from shoal_worker.decisions.unit import INTERACTIVE


@dataclass(frozen=True)
class Pace:
    """Of one device; a model's tuned block may set batches of its own."""

    interactive_ms: float
    """Predicted milliseconds that a batch of interactive units may take."""
    bulk_ms: float
    """The same for bulk: it costs interactive units that arrive behind it."""
    pull_lead_ms: float
    """A busy worker pulls so long before a stream is predicted to be free."""
    ready_lead_ms: float
    """A batch that could still grow is sent so long before a stream is free: assembly and two hops."""

    def __post_init__(self) -> None:
        if not 0 < self.interactive_ms <= self.bulk_ms:
            raise ValueError("a bulk batch is no shorter than an interactive one")
        if not 0 < self.ready_lead_ms < self.pull_lead_ms < self.interactive_ms:
            raise ValueError("what is pulled must be there when a batch is sent, and never a whole batch early")

    def of_model(self, tuned: Tuned) -> Pace:
        """The same for batches of a model whose profile may say how long they are."""
        interactive_ms = tuned.interactive_ms or self.interactive_ms
        pull_lead_ms = min(self.pull_lead_ms, interactive_ms / 2)
        return Pace(
            interactive_ms=interactive_ms,
            bulk_ms=max(tuned.bulk_ms or self.bulk_ms, interactive_ms),
            pull_lead_ms=pull_lead_ms,
            ready_lead_ms=min(self.ready_lead_ms, pull_lead_ms / 2),
        )

    def batch_ms(self, work_class: str) -> float:
        """Predicted milliseconds that a batch of a class may take."""
        return self.interactive_ms if work_class == INTERACTIVE else self.bulk_ms


CPU = Pace(interactive_ms=60.0, bulk_ms=120.0, pull_lead_ms=20.0, ready_lead_ms=5.0)
"""An interactive unit that meets a busy device waits for about one batch: with two CPU streams that is 120 ms.
A batch's own cost (3 ms) is 5 % of it, the mesh's work for a batch below 2 %. The pull, tokenizing and sending
take about 5 ms; the rest of the lead covers predictions that are too long."""
GPU = Pace(interactive_ms=28.0, bulk_ms=60.0, pull_lead_ms=3.0, ready_lead_ms=1.5)
"""Simulated (`bench.sim`), with 4 ms for a batch's own cost and 0.4 to 1 ms for a pull's round trip: what serves the
highest load at a p99 of 50 ms, whether one model is asked for or eight."""


def of_device(device: str) -> Pace:
    """The pace of a device such as cpu, cuda:0 or sim:0."""
    return CPU if device == "cpu" else GPU
