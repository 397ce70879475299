"""Units admitted and not yet in a batch, by model and class."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from shoal_worker.decisions.deadlines import Deadlines
from shoal_worker.decisions.fair_order import FairOrder, Weight, equal
from shoal_worker.decisions.unit import HeldUnit, Stage


class Queue:
    """Units of one model and class: fair between tenants, by deadline within each.

    Each queue is fair by itself. A tenant is not charged in one for what it ran in another: the order only decides
    between units that could be in the same batch, queues take turns by class and deadline whoever's they are, and
    else a tenant's bulk work would push back its own interactive work.
    """

    def __init__(self, profile_digest: str, work_class: str, weight: Weight) -> None:
        self.profile_digest = profile_digest
        self.work_class = work_class
        self.ready_ms = 0.0
        """Predicted cost of the units that are ready."""
        self.ready = 0
        self.expected_ms = 0.0
        """Predicted cost of those that the sidecar still tokenizes."""
        self.expected = 0
        self._order = FairOrder(weight)
        self._deadlines = Deadlines()

    def head(self) -> HeldUnit | None:
        """The ready unit whose turn it is."""
        return self._order.head()

    def units(self) -> list[HeldUnit]:
        """The ready units in the order in which they would be taken."""
        return self._order.in_order()

    def first_to_expire(self) -> HeldUnit | None:
        """The ready unit whose deadline is next, whoever's turn it is."""
        return self._deadlines.first()

    def push(self, order: int, unit: HeldUnit) -> None:
        """Puts a ready unit in; `order` decides between equal deadlines."""
        self.ready += 1
        self.ready_ms += unit.cost_ms
        self._order.add(unit, order)
        self._deadlines.add(unit, order)

    def left(self, unit: HeldUnit, *, runs: bool) -> None:
        """A unit is not ready any more: it runs, or is gone."""
        self.ready -= 1
        self.ready_ms = self.ready_ms - unit.cost_ms if self.ready else 0.0
        self._order.left(unit, runs=runs)
        self._deadlines.left()


class Backlog:
    """All queues. A unit is `expect`ed, becomes `ready`, and is `remove`d for a batch or for good."""

    def __init__(self, weight: Weight = equal) -> None:
        self._weight = weight
        self._queues: dict[tuple[str, str], Queue] = {}
        self._order = itertools.count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ready or expected."""
        return not any(queue.ready or queue.expected for queue in self._queues.values())

    def queues(self, work_class: str) -> Iterator[Queue]:
        """The queues of a class that hold ready units."""
        return (queue for queue in self._queues.values() if queue.work_class == work_class and queue.ready)

    def held(self, work_class: str) -> Iterator[Queue]:
        """The queues of a class that hold units, ready or expected."""
        return (
            queue
            for queue in self._queues.values()
            if queue.work_class == work_class and (queue.ready or queue.expected)
        )

    def waiting_ms(self, work_class: str, can_run: Callable[[str], bool]) -> float:
        """Predicted cost of everything of a class, ready or expected, whose model can run."""
        return sum(
            queue.ready_ms + queue.expected_ms
            for queue in self._queues.values()
            if queue.work_class == work_class and can_run(queue.profile_digest)
        )

    def take_expired(self, now_s: float) -> list[HeldUnit]:
        """Takes out the ready units whose deadline is over."""
        expired = []
        for queue in self._queues.values():
            while (unit := queue.first_to_expire()) is not None and unit.deadline_s <= now_s:
                self.remove(unit, Stage.GONE)
                expired.append(unit)
        return expired

    def expect(self, unit: HeldUnit) -> None:
        """A unit went to the sidecar."""
        unit.stage = Stage.ADMITTING
        queue = self._queue(unit)
        queue.expected += 1
        queue.expected_ms += unit.cost_ms

    def ready(self, unit: HeldUnit) -> None:
        """A unit may run."""
        unit.stage = Stage.READY
        self._queue(unit).push(next(self._order), unit)

    def remove(self, unit: HeldUnit, stage: Stage) -> None:
        """A unit leaves for another stage; one that is not here just changes it."""
        queue, before = self._queue(unit), unit.stage
        unit.stage = stage
        if before is Stage.READY:
            queue.left(unit, runs=stage is Stage.RUNNING)
        elif before is Stage.ADMITTING:
            queue.expected -= 1
            queue.expected_ms = queue.expected_ms - unit.cost_ms if queue.expected else 0.0

    def _queue(self, unit: HeldUnit) -> Queue:
        key = (unit.profile_digest, unit.work_class)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = Queue(*key, self._weight)
        return queue
