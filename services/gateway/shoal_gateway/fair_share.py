"""Whose units go to a lane next: a window of predicted cost, shared between tenants by weight. Pure.

What is published cannot be overtaken, so only as much is published as keeps the lane's devices in full batches;
the rest waits here, in start-time fair order (Goyal, Vin, Cheng 1996): a tenant's unit starts in virtual time
when its last one ended, or now, and ends cost ÷ weight later; the earliest start goes first.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

CONTESTED_S = 30.0
"""One tenant flooded beside another so lately that it may again: who comes now and then must not find a full window."""
MOST_WINDOWS = 2.0
"""What tenants may have admitted by their credit, beside a window that another has filled."""


class Tenant:
    """What one tenant has in the lane."""

    __slots__ = (
        "finish",
        "is_held_back",
        "name",
        "outstanding",
        "outstanding_cost",
        "places",
        "start",
        "waiting",
        "waiting_cost",
        "weight",
    )

    def __init__(self, name: str, weight: float, finish: float) -> None:
        self.name = name
        self.weight = weight
        self.outstanding = 0
        """Units."""
        self.outstanding_cost = 0.0
        self.waiting_cost = 0.0
        self.places = 0
        self.is_held_back = False
        """Whether something of it waits."""
        self.waiting: deque[Place] = deque()
        """Places whose next unit waits, in order; those that have left are skipped."""
        self.start = 0.0
        """In virtual time, of the first waiting unit."""
        self.finish = finish
        """Of the last unit that was admitted."""


class Place:
    """One request's units in the lane: the first `admitted` of them may be published, the others wait in order."""

    __slots__ = ("_answered", "_costs", "_tenant", "_wake", "admitted", "outstanding_cost", "waiting_cost")

    def __init__(self, tenant: Tenant, costs: Sequence[float], wake: Callable[[], None]) -> None:
        self._tenant = tenant
        self._costs = costs
        self._answered = bytearray(len(costs))
        self._wake = wake
        self.admitted = 0
        self.outstanding_cost = 0.0
        """Of the units that were admitted and not answered."""
        self.waiting_cost = 0.0
        """Of the units that were not admitted."""


class FairShare:
    """One lane and class. Costs are above 0, in whatever unit the window is in."""

    def __init__(self, window: float, contested: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """The second window, not larger than the first, is used while one tenant's flood would let others wait."""
        self.window = window
        self.contested = contested
        self.usable = window
        """The one of the two that is used."""
        self.total = 0.0
        """Admitted and not answered, of all tenants."""
        self._clock_s = clock_s
        self._met_s = -math.inf
        """When some tenants were last held back, and others were not."""
        self._held_back = 0
        """Tenants of which something waits."""
        self._outstanding = 0
        self._now = 0.0
        """Virtual time: the latest start of a unit that was admitted in its turn."""
        self._tenants: dict[str, Tenant] = {}
        self._weights = 0.0
        self._finished: dict[str, float] = {}
        """Of tenants that have nothing here now: one that comes and goes has no more credit for it."""
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, Tenant]] = []
        """A heap of tenants by the starts of their first waiting units; entries that are no longer so are skipped."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is waiting or outstanding."""
        return not self._tenants

    def waiting_cost(self, tenant: str) -> float:
        """What a tenant has waiting here."""
        found = self._tenants.get(tenant)
        return found.waiting_cost if found is not None else 0.0

    def share(self, tenant: str, weight: float) -> float:
        """The part of the lane that is a tenant's, beside those that use it now: above 0, at most 1."""
        return weight / (self._weights if tenant in self._tenants else self._weights + weight)

    def enter(self, name: str, weight: float, costs: Sequence[float], wake: Callable[[], None]) -> Place:
        """A request's units join: some may be admitted at once. `wake` is called for each that is admitted later."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, weight, self._finished.pop(name, 0.0))
            self._weights += weight
        elif tenant.weight != weight:
            self._weights += weight - tenant.weight
            tenant.weight = weight
        tenant.places += 1
        place = Place(tenant, costs, wake)
        self._look()
        is_first = self._first(tenant) is None
        if is_first:
            while place.admitted < len(costs) and self._fits(tenant, costs[place.admitted]):
                start = self._start(tenant)
                if self.total < self.usable:
                    self._now = max(self._now, start)
                self._admit(place, start)
        if place.admitted < len(costs):
            place.waiting_cost = sum(costs[place.admitted :])
            tenant.waiting_cost += place.waiting_cost
            tenant.waiting.append(place)
            if is_first:
                self._hold_back(tenant, True)
                self._line_up(tenant, self._start(tenant))
        return place

    def answered(self, place: Place, index: int) -> None:
        """One of a place's units has its result, or never will; a second word of it counts for nothing."""
        if index < place.admitted and not place._answered[index]:
            place._answered[index] = 1
            self._release(place, place._costs[index], 1)
            self._next(place._tenant)

    def leave(self, place: Place) -> None:
        """A request ends, however it does: nothing of it is outstanding or waiting any more."""
        tenant = place._tenant
        tenant.places -= 1
        tenant.waiting_cost -= place.waiting_cost
        place.waiting_cost = 0.0
        self._release(place, place.outstanding_cost, place._answered.count(0, 0, place.admitted))
        place.admitted = len(place._costs)  # It waits for nothing any more, and no word of it counts.
        place._answered = bytearray(b"\x01" * place.admitted)
        if self._first(tenant) is None:
            self._hold_back(tenant, False)
        if tenant.places == 0:
            del self._tenants[tenant.name]
            self._finished[tenant.name] = tenant.finish
            self._weights -= tenant.weight
        if not self._tenants:
            self._weights = self._now = 0.0
            self._finished.clear()
            self._waiting.clear()
        self._next(tenant)

    def set_window(self, window: float, contested: float) -> None:
        """From now on so much may be outstanding."""
        self.window, self.contested = window, contested
        self._fill()

    def open(self) -> None:
        """Admits everything that waits: nobody knows how much the lane can take."""
        self.set_window(math.inf, math.inf)

    def _look(self) -> None:
        """Sees whether one floods and another does not; where all are held back, or none is, nobody is to be spared."""
        now_s = self._clock_s()
        if 0 < self._held_back < len(self._tenants):
            self._met_s = now_s
        self.usable = self.contested if now_s - self._met_s < CONTESTED_S else self.window

    def _fits(self, tenant: Tenant, cost: float) -> bool:
        """Whether a tenant's first unit goes at once: there is room, or the tenant had less than its share of late.

        Then it has credit for its share of the window; and one that has nothing there needs none, however large
        its unit is.
        """
        if self.total < self.usable:
            return True
        if self.total >= MOST_WINDOWS * self.window:
            return False
        return self._start(tenant) + cost / tenant.weight <= self._now or (
            not tenant.outstanding and tenant.finish <= self._now
        )

    def _start(self, tenant: Tenant) -> float:
        """When a tenant's next unit starts in virtual time: what it left unused lately is remembered a window long."""
        return max(tenant.finish, self._now - self.window / self._weights)

    def _admit(self, place: Place, start: float) -> None:
        tenant, cost = place._tenant, place._costs[place.admitted]
        place.admitted += 1
        place.outstanding_cost += cost
        tenant.outstanding += 1
        tenant.outstanding_cost += cost
        tenant.finish = start + cost / tenant.weight
        self.total += cost
        self._outstanding += 1

    def _release(self, place: Place, cost: float, units: int) -> None:
        tenant = place._tenant
        place.outstanding_cost -= cost
        tenant.outstanding -= units
        tenant.outstanding_cost = tenant.outstanding_cost - cost if tenant.outstanding else 0.0  # Sums of floats drift.
        self._outstanding -= units
        self.total = self.total - cost if self._outstanding else 0.0

    def _next(self, released: Tenant) -> None:
        """Admits what may go now that something of a tenant's was released."""
        self._fill()
        while (place := self._first(released)) is not None and self._fits(released, place._costs[place.admitted]):
            self._advance(released, place)

    def _fill(self) -> None:
        """Admits in fair order until the window is full."""
        self._look()
        while self._waiting and self.total < self.usable:
            start, _, tenant = heapq.heappop(self._waiting)
            place = self._first(tenant)
            if place is not None and start == tenant.start:
                self._now = max(self._now, start)
                self._advance(tenant, place)

    def _first(self, tenant: Tenant) -> Place | None:
        """The tenant's place whose unit is next; None when nothing of it waits."""
        while tenant.waiting:
            place = tenant.waiting[0]
            if place.admitted < len(place._costs):
                return place
            tenant.waiting.popleft()
        return None

    def _advance(self, tenant: Tenant, place: Place) -> None:
        cost = place._costs[place.admitted]
        self._admit(place, tenant.start)
        tenant.waiting_cost -= cost
        place.waiting_cost -= cost
        if place.admitted == len(place._costs):
            tenant.waiting_cost -= place.waiting_cost  # What floats left over.
            place.waiting_cost = 0.0
            tenant.waiting.popleft()
        if self._first(tenant) is not None:
            self._line_up(tenant, tenant.finish)
        else:
            self._hold_back(tenant, False)
        place._wake()

    def _hold_back(self, tenant: Tenant, is_held_back: bool) -> None:
        self._held_back += is_held_back - tenant.is_held_back
        tenant.is_held_back = is_held_back

    def _line_up(self, tenant: Tenant, start: float) -> None:
        """Puts a tenant's next waiting unit into the order."""
        tenant.start = start
        heapq.heappush(self._waiting, (start, next(self._order), tenant))
