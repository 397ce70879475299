"""Ready units in the order of their deadlines; any of them may leave."""

from __future__ import annotations

import heapq

from shoal_worker.decisions.unit import HeldUnit, Stage

SLACK = 64
"""So many entries of units that left may stay, beside one for each that is here: clearing them is paid for then."""


class Deadlines:
    """Adding and leaving take O(log n). Units that are not `READY` any more have left."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, HeldUnit]] = []
        self.count = 0

    def add(self, unit: HeldUnit, order: int) -> None:
        """A unit became ready; `order` decides between equal deadlines, and is unique."""
        self.count += 1
        heapq.heappush(self._heap, (unit.deadline_s, order, unit))

    def left(self) -> None:
        """One of the units is not ready any more."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].stage is Stage.READY]
            heapq.heapify(self._heap)

    def first(self) -> HeldUnit | None:
        """The unit whose deadline is next."""
        heap = self._heap
        while heap and heap[0][2].stage is not Stage.READY:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def in_order(self) -> list[HeldUnit]:
        """All units."""
        ready = [entry for entry in self._heap if entry[2].stage is Stage.READY]
        ready.sort(key=lambda entry: entry[:2])
        return list(dict.fromkeys(entry[2] for entry in ready))  # One that left and came back stands twice.
