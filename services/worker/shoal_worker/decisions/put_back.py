"""Put-backs: which units a worker has too many of, and which of them go back to the queue."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from shoal_common import limits
from shoal_worker.decisions.pace import Pace
from shoal_worker.decisions.unit import HeldUnit

HOP_S = 0.002
"""A unit that stood in an offer for so long was wanted by no sibling: an offer, a match and a grant take less."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a worker tells its siblings of its device."""

    free_in_ms: float
    """Until the device could start a unit that it is granted now."""
    room_ms: float
    """Predicted milliseconds of further units that it takes; 0 takes none."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """A unit that would start sooner elsewhere."""

    unit: HeldUnit
    cost_ms: float
    """What it adds to a batch."""
    starts_in_ms: float
    """Until it would start here."""


def to_queue(surplus: Sequence[Surplus], idle_lanes: Set[str], pace: Pace, now_s: float) -> list[HeldUnit]:
    """The units of a surplus that go back to the queue.

    Those that no sibling took while they stood in an offer, that would start here only after a whole batch of
    their class, and for whose lane (`idle_lanes` are tokens) a worker on another machine is idle.
    """
    return [
        over.unit
        for over in surplus
        if over.starts_in_ms > pace.batch_ms(over.unit.work_class)
        and over.unit.put_backs < limits.PUT_BACKS
        and over.unit.offered_s is not None
        and now_s - over.unit.offered_s >= HOP_S
        and over.unit.lane in idle_lanes
    ]
