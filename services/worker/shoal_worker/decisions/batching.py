"""The next batch: which queue it comes from, how much of it, and whether it may wait for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal_common import limits
from shoal_worker.decisions.backlog import Backlog, Queue
from shoal_worker.decisions.cost import CostModel
from shoal_worker.decisions.turns import TURN_MS, Turns
from shoal_worker.decisions.unit import INTERACTIVE, HeldUnit, Stage

INTERACTIVE_MS = 60.0
"""An interactive unit that meets a busy device waits for about one batch: with two CPU streams that is
120 ms. A batch's own cost (3 ms on a CPU) is 5 % of it, the mesh's work for a batch below 2 %."""
BULK_MS = 120.0
"""A bulk batch costs interactive units that arrive behind it, and gains little beyond this."""
BATCH_TOKENS = 65_536
"""Bounds the activations of a batch on the device."""
BATCH_ITEMS = 1_024
OVERHEAD_SHARE = 0.5
"""At most so much of a batch is its own cost: where that nears the limit of a class, the batch may be longer."""
READY_LEAD_MS = 5.0
"""A batch that could still grow is sent so long before a stream is free: assembly and two hops."""

assert TURN_MS <= INTERACTIVE_MS <= BULK_MS, "bulk's turn is no longer than an interactive batch"
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
    device_ms: float = 0.0
    """What it really took, once it is done."""


def limit_ms(work_class: str, interactive_waits: bool, cost: CostModel) -> float:
    """Predicted milliseconds that a batch of a class may take: always more than `cost.batch_ms`."""
    class_ms = INTERACTIVE_MS if work_class == INTERACTIVE or interactive_waits else BULK_MS
    return max(class_ms, cost.batch_ms / OVERHEAD_SHARE)


def next_queue(backlog: Backlog, turns: Turns, can_run: Callable[[str], bool]) -> Queue | None:
    """The queue whose turn it is: by class, then by the earliest deadline, of those whose model can run."""
    for work_class in turns.order():
        heads = [
            (head.deadline_s, queue)
            for queue in backlog.queues(work_class)
            if can_run(queue.profile_digest) and (head := queue.head())
        ]
        if heads:
            return min(heads, key=lambda pair: pair[0])[1]
    return None


def is_full(queue: Queue, cost: CostModel, bound_ms: float) -> bool:
    """Whether waiting can no longer make the queue's next batch better."""
    head = queue.head()
    return cost.batch_ms + queue.ready_ms >= bound_ms or (head is not None and head.runs_alone)


def take(backlog: Backlog, queue: Queue, cost: CostModel, bound_ms: float) -> Batch:
    """Takes the next batch out of a queue: at least one unit, in the order of deadlines, within the bounds."""
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
        if unit.runs_alone:
            break
    return batch
