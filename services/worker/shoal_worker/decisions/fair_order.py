"""The order of a queue's units: fair between tenants by predicted cost, by deadline within a tenant."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal_worker.decisions.deadlines import SLACK, Deadlines
from shoal_worker.decisions.unit import HeldUnit

NOT_ENTERED = -1

Weight = Callable[[str], float]
"""A tenant's weight, above 0: its share is that over the sum of those that wait."""


def equal(tenant: str) -> float:
    """All tenants weigh the same."""
    return 1.0


@dataclass(slots=True, eq=False)
class _Share:
    """A tenant's part in a queue."""

    weight: float
    start_ms: float
    """Virtual time at which its next unit begins."""
    units: Deadlines = field(default_factory=Deadlines)
    entry: int = NOT_ENTERED
    """The entry of the heap that stands for it."""


class FairOrder:
    """Start-time fair queueing (Goyal, Vin, Cheng 1996): the tenant whose virtual start is least comes first, and
    each unit that runs moves it on by its predicted cost over the tenant's weight.

    Between two tenants that both wait, what ran of each over its weight never differs by more than one unit of
    each. A tenant that comes starts at the virtual time of the unit that ran last: while it was away it saved up
    nothing, and it waits for nobody's past. So a unit about to expire is at most its tenant's share away. With one
    tenant this is the order of deadlines.
    """

    def __init__(self, weight: Weight = equal) -> None:
        self._weight = weight
        self._shares: dict[str, _Share] = {}
        self._heap: list[tuple[float, float, int, _Share]] = []
        """By virtual start, then by the deadline of the tenant's first unit; where that left, by one that is over."""
        self._entries = itertools.count()
        self._now_ms = 0.0
        """Virtual time: the start of the unit that ran last."""

    def add(self, unit: HeldUnit, order: int) -> None:
        """A unit became ready; `order` is unique and decides between equal deadlines."""
        share = self._shares.get(unit.tenant)
        if share is None:
            share = self._shares[unit.tenant] = _Share(self._weight(unit.tenant), self._now_ms)
        elif not share.units.count:
            share.start_ms = max(share.start_ms, self._now_ms)
        share.units.add(unit, order)
        if share.units.first() is unit:
            self._enter(share)

    def left(self, unit: HeldUnit, *, runs: bool) -> None:
        """A unit is not ready any more: it runs, which its tenant is charged for, or is gone."""
        share = self._shares[unit.tenant]
        share.units.left()
        if runs:
            self._now_ms = max(self._now_ms, share.start_ms)
            share.start_ms += unit.cost_ms / share.weight
        if share.units.count:
            if runs:
                self._enter(share)
            return
        share.entry = NOT_ENTERED
        if share.start_ms <= self._now_ms:
            del self._shares[unit.tenant]  # It would begin no earlier without.
        if self.head() is None:  # Nobody waits: whoever comes next, all start together.
            self._shares.clear()
            self._now_ms = 0.0

    def head(self) -> HeldUnit | None:
        """The unit whose turn it is."""
        heap = self._heap
        while heap and heap[0][3].entry != heap[0][2]:
            heapq.heappop(heap)
        return heap[0][3].units.first() if heap else None

    def in_order(self) -> list[HeldUnit]:
        """All units as they would run if none came."""
        turns = []
        for share in self._shares.values():
            if share.units.count:
                ahead = iter(share.units.in_order())
                first = next(ahead)
                turns.append((share.start_ms, first.deadline_s, share.entry, first, ahead, share.weight))
        heapq.heapify(turns)
        ordered = []
        while turns:
            start_ms, _, entry, unit, ahead, weight = turns[0]
            ordered.append(unit)
            follower = next(ahead, None)
            if follower is None:
                heapq.heappop(turns)
            else:
                start_ms += unit.cost_ms / weight
                heapq.heapreplace(turns, (start_ms, follower.deadline_s, entry, follower, ahead, weight))
        return ordered

    def _enter(self, share: _Share) -> None:
        first = share.units.first()
        if first is None:
            return
        share.entry = next(self._entries)
        heapq.heappush(self._heap, (share.start_ms, first.deadline_s, share.entry, share))
        if len(self._heap) > 2 * len(self._shares) + SLACK:
            self._tidy()

    def _tidy(self) -> None:
        """Drops entries that stand for nothing any more, and tenants that are away and owe nothing."""
        self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
        heapq.heapify(self._heap)
        self._shares = {
            tenant: share
            for tenant, share in self._shares.items()
            if share.units.count or share.start_ms > self._now_ms
        }
