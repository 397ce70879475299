"""Units admitted and not yet in a batch, by model and class, each queue in the order of deadlines."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

from shoal_worker.decisions.unit import HeldUnit, Stage


class Queue:
    """Units of one model and class."""

    def __init__(self, profile_digest: str, work_class: str) -> None:
        self.profile_digest = profile_digest
        self.work_class = work_class
        self.ready_ms = 0.0
        """Predicted cost of the units that are ready."""
        self.ready = 0
        self.expected_ms = 0.0
        """Predicted cost of those that the sidecar still tokenizes."""
        self.expected = 0
        self._heap: list[tuple[float, int, HeldUnit]] = []

    def push(self, order: int, unit: HeldUnit) -> None:
        """Puts a ready unit in; `order` decides between equal deadlines."""
        heapq.heappush(self._heap, (unit.deadline_s, order, unit))

    def head(self) -> HeldUnit | None:
        """The ready unit whose deadline is next."""
        heap = self._heap
        while heap and heap[0][2].stage is not Stage.READY:
            heapq.heappop(heap)  # It left from the middle: cancelled.
        return heap[0][2] if heap else None


class Backlog:
    """All queues. A unit is `expect`ed, becomes `ready`, and is `remove`d for a batch or for good."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], Queue] = {}
        self._order = itertools.count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ready or expected."""
        return not any(queue.ready or queue.expected for queue in self._queues.values())

    def queues(self, work_class: str) -> Iterator[Queue]:
        """The queues of a class that hold ready units."""
        return (queue for queue in self._queues.values() if queue.work_class == work_class and queue.ready)

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
            while (unit := queue.head()) is not None and unit.deadline_s <= now_s:
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
        queue = self._queue(unit)
        queue.ready += 1
        queue.ready_ms += unit.cost_ms
        queue.push(next(self._order), unit)

    def remove(self, unit: HeldUnit, stage: Stage) -> None:
        """A unit leaves for another stage; one that is not here just changes it."""
        queue = self._queue(unit)
        if unit.stage is Stage.READY:
            queue.ready -= 1
            queue.ready_ms = queue.ready_ms - unit.cost_ms if queue.ready else 0.0
        elif unit.stage is Stage.ADMITTING:
            queue.expected -= 1
            queue.expected_ms = queue.expected_ms - unit.cost_ms if queue.expected else 0.0
        unit.stage = stage

    def _queue(self, unit: HeldUnit) -> Queue:
        key = (unit.profile_digest, unit.work_class)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = Queue(*key)
        return queue
