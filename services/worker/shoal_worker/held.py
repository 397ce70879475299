"""The units in this worker's hands, and the ids of those that it must recognise when they come again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal_common import limits
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.remembered import Remembered


class Held:
    """Everything keyed by unit id. Times are seconds on the loop's monotonic clock unless said otherwise."""

    def __init__(self) -> None:
        self._units: dict[str, HeldUnit] = {}
        self._finished = Remembered()
        self._cancelled = Remembered()
        self._silent: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[HeldUnit]:
        return iter(list(self._units.values()))

    def get(self, unit_id: str) -> HeldUnit | None:
        """A unit in hand."""
        return self._units.get(unit_id)

    def at(self, *stages: Stage) -> list[HeldUnit]:
        """The units at some stages."""
        return [unit for unit in self._units.values() if unit.stage in stages]

    def add(self, unit: HeldUnit) -> None:
        """Takes a unit into hand."""
        self._units[unit.id] = unit

    def remove(self, unit: HeldUnit) -> None:
        """Lets a unit go; it is taken anew if it is delivered again."""
        unit.stage = Stage.GONE
        self._units.pop(unit.id, None)

    def finish(self, unit: HeldUnit, now_s: float) -> None:
        """Lets a unit go whose answer has arrived; it is acked again if it is delivered again."""
        self.remove(unit)
        self._finished.add(unit.id, now_s + limits.FINISHED_IDS_S)

    def is_finished(self, unit_id: str, now_s: float) -> bool:
        """Whether a unit's answer has arrived lately."""
        return self._finished.holds(unit_id, now_s)

    def cancel(self, unit_ids: Iterable[str], remember_s: float, now_s: float) -> list[HeldUnit]:
        """Remembers that nobody waits for these; returns those in hand that can be dropped at once.

        What is in a batch, answered, or on its way back to the queue is dropped when that is over.
        """
        waiting = []
        for unit_id in unit_ids:
            self._cancelled.add(unit_id, now_s + remember_s)
            unit = self._units.get(unit_id)
            if unit is not None and unit.stage not in (Stage.RUNNING, Stage.ANSWERED, Stage.RETURNING):
                waiting.append(unit)
        return waiting

    def is_cancelled(self, unit_id: str, now_s: float) -> bool:
        """Whether nobody waits for a unit."""
        return self._cancelled.holds(unit_id, now_s)

    def caller_silent(self, reply_subject: str, broker_s: float) -> None:
        """A caller confirmed nothing through a whole schedule: units it published before are not worth running.

        A unit that is published later (on the broker's clock, as `broker_s`) shows that it lives.
        """
        self._silent[reply_subject] = broker_s

    def is_caller_silent(self, reply_subject: str, published_s: float) -> bool:
        """Whether a unit of that age waits for a caller that is gone."""
        return published_s < self._silent.get(reply_subject, 0.0)

    def forget_old(self, now_s: float, broker_s: float) -> None:
        """Frees what is remembered longer than it can matter."""
        self._finished.forget_old(now_s)
        self._cancelled.forget_old(now_s)
        oldest_s = broker_s - limits.DEADLINE_MAX_S
        self._silent = {subject: at_s for subject, at_s in self._silent.items() if at_s > oldest_s}
