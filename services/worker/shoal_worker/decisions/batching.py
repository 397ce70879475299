"""The next batch: which queue it comes from, how much of it, and whether it may wait for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal_common import limits
from shoal_worker.decisions.backlog import Backlog, Queue
from shoal_worker.decisions.cost import CostModel
from shoal_worker.decisions.pace import Pace
from shoal_worker.decisions.turns import Turns
from shoal_worker.decisions.unit import INTERACTIVE, HeldUnit, Stage

BATCH_TOKENS = 65_536
"""Bounds the activations of a batch on the device."""
BATCH_ITEMS = 1_024
STRETCH = 1.15
"""A batch may be longer by this where it then takes all that is ready: pulls are sized by guess, and what a batch
leaves behind waits for a whole one and costs another."""
OVERHEAD_SHARE = 0.5
"""At most so much of a batch is its own cost: where that nears the limit of a class, the batch may be longer."""

assert BATCH_ITEMS * 4 * limits.DIMENSIONS <= limits.MESSAGE_BYTES, "a batch's f32 rows fit into one message"
assert BATCH_ITEMS >= limits.UNIT_ITEMS, "every unit fits into a batch"


@dataclass(slots=True)
class Batch:
    """Units that run together: of one model and class."""

    profile_digest: str
    work_class: str
    units: list[HeldUnit]
    predicted_ms: float
    tokens: int
    items: int
    squared_tokens: int = 0
    alone_ms: float = 0.0
    """What is predicted if it has the device to itself."""
    alone: bool = False
    """Whether it had the device to itself, once it is done."""
    device_ms: float = 0.0
    """What it really took, once it is done."""

    @property
    def foreseen_ms(self) -> float:
        """What was predicted, when it was sent, for the way in which it then ran."""
        return self.alone_ms if self.alone else self.predicted_ms


def limit_ms(work_class: str, interactive_waits: bool, cost: CostModel, pace: Pace) -> float:
    """Predicted milliseconds that a batch of a class may take: always more than `cost.batch_ms`."""
    class_ms = pace.batch_ms(INTERACTIVE if interactive_waits else work_class)
    return max(class_ms, cost.batch_ms / OVERHEAD_SHARE)


def next_queue(backlog: Backlog, turns: Turns, can_run: Callable[[str], bool]) -> Queue | None:
    """The queue that the next batch comes from: by class, then by the earliest deadline, of those whose model can
    run. One that has units only at the sidecar, to be tokenized, comes after those that have ready ones."""
    for work_class in turns.order():
        queues = [queue for queue in backlog.held(work_class) if can_run(queue.profile_digest)]
        if queues:
            return queues[0] if len(queues) == 1 else min(queues, key=_deadline_s)
    return None


def in_turn(backlog: Backlog, work_class: str, can_run: Callable[[str], bool]) -> list[Queue]:
    """The queues of a class that can run, in the order in which their batches go."""
    return sorted((queue for queue in backlog.held(work_class) if can_run(queue.profile_digest)), key=_deadline_s)


def _deadline_s(queue: Queue) -> float:
    head = queue.head()
    return head.deadline_s if head is not None else float("inf")


def is_full(queue: Queue, cost: CostModel, bound_ms: float) -> bool:
    """Whether waiting can no longer make the queue's next batch better."""
    head = queue.head()
    return cost.batch_ms + queue.ready_ms >= bound_ms or (head is not None and head.runs_alone)


def take(backlog: Backlog, queue: Queue, cost: CostModel, bound_ms: float) -> Batch:
    """Takes the next batch out of a queue: at least one unit, in the queue's order, within the bounds."""
    if cost.batch_ms + queue.ready_ms <= bound_ms * STRETCH:
        bound_ms *= STRETCH
    batch = Batch(queue.profile_digest, queue.work_class, [], cost.batch_ms, 0, 0)
    while (unit := queue.head()) is not None:
        if batch.units and (
            unit.runs_alone
            or batch.predicted_ms + unit.cost_ms > bound_ms
            or batch.tokens + unit.tokens > BATCH_TOKENS
            or batch.items + unit.items > BATCH_ITEMS
        ):
            break
        backlog.remove(unit, Stage.RUNNING)
        batch.units.append(unit)
        batch.predicted_ms += unit.cost_ms
        batch.tokens += unit.tokens
        batch.items += unit.items
        batch.squared_tokens += unit.squared_tokens
        if unit.runs_alone:
            break
    return batch
