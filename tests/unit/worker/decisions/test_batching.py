"""Batches: one queue, deadlines in order, bounded by time, tokens and items."""

from __future__ import annotations

from shoal_common.profile import Cost
from shoal_worker.decisions import batching, credit, pace
from shoal_worker.decisions.backlog import Backlog
from shoal_worker.decisions.batching import BATCH_ITEMS, BATCH_TOKENS
from shoal_worker.decisions.cost import CostModel
from shoal_worker.decisions.turns import Turns
from shoal_worker.decisions.unit import BULK, INTERACTIVE, HeldUnit, Stage
from tests.unit.worker.units import DIGEST, unit

INTERACTIVE_MS, BULK_MS = pace.CPU.interactive_ms, pace.CPU.bulk_ms
COST = CostModel(Cost(batch_ms=3.0, token_us=100.0))


def backlog_of(*units: HeldUnit, cost_ms: float = 2.0) -> Backlog:
    backlog = Backlog()
    for one in units:
        one.cost_ms = one.cost_ms or cost_ms
        backlog.ready(one)
    return backlog


def next_batch(backlog: Backlog, turns: Turns | None = None, bound_ms: float = INTERACTIVE_MS) -> batching.Batch:
    queue = batching.next_queue(backlog, turns or Turns(INTERACTIVE_MS), lambda digest: True)
    assert queue is not None
    return batching.take(backlog, queue, COST, bound_ms)


def test_units_run_in_the_order_of_their_deadlines() -> None:
    late, soon, sooner = unit(deadline_s=30), unit(deadline_s=20), unit(deadline_s=10)
    batch = next_batch(backlog_of(late, soon, sooner))
    assert batch.units == [sooner, soon, late]
    assert batch.predicted_ms == 3.0 + 3 * 2.0
    assert all(one.stage is Stage.RUNNING for one in batch.units)


def test_a_batch_ends_before_its_bound() -> None:
    backlog = backlog_of(*(unit() for _ in range(100)))
    batch = next_batch(backlog)
    assert INTERACTIVE_MS - 2.0 < batch.predicted_ms <= INTERACTIVE_MS
    assert len(next_batch(backlog).units) == len(batch.units)


def test_a_unit_over_the_bound_runs_all_the_same() -> None:
    big, small = unit(deadline_s=1), unit(deadline_s=2)
    big.cost_ms = 10 * INTERACTIVE_MS
    batch = next_batch(backlog_of(big, small))
    assert batch.units == [big]


def test_tokens_and_items_are_bounded() -> None:
    tokens = next_batch(backlog_of(*(unit(tokens=BATCH_TOKENS // 3) for _ in range(5)), cost_ms=0.1))
    assert len(tokens.units) == 3
    items = next_batch(backlog_of(*(unit(items=BATCH_ITEMS // 2) for _ in range(5)), cost_ms=0.1))
    assert len(items.units) == 2


def test_a_unit_delivered_before_runs_alone() -> None:
    first, again, last = unit(deadline_s=1), unit(deadline_s=2, deliveries=2), unit(deadline_s=3)
    backlog = backlog_of(first, again, last)
    assert [next_batch(backlog).units for _ in range(3)] == [[first], [again], [last]]


def test_models_and_classes_do_not_mix() -> None:
    one, other, bulk = unit(deadline_s=2), unit(deadline_s=1, digest="e" * 64), unit(work_class=BULK, deadline_s=0)
    backlog = backlog_of(one, other, bulk)
    assert [next_batch(backlog).units for _ in range(3)] == [[other], [one], [bulk]]


def test_a_model_that_cannot_run_is_passed_over() -> None:
    other = unit(digest="e" * 64, deadline_s=9)
    backlog = backlog_of(unit(deadline_s=1), other)
    queue = batching.next_queue(backlog, Turns(INTERACTIVE_MS), lambda digest: digest != DIGEST)
    assert queue is not None and queue.head() is other
    assert batching.next_queue(backlog, Turns(INTERACTIVE_MS), lambda digest: False) is None


def test_bulk_gets_its_floor_and_no_more() -> None:
    turns, spent = Turns(INTERACTIVE_MS), {INTERACTIVE: 0.0, BULK: 0.0}
    for _ in range(1_000):
        work_class = turns.order()[0]
        batch_ms = INTERACTIVE_MS
        turns.charge(work_class, batch_ms)
        spent[work_class] += batch_ms
    assert 0.08 < spent[BULK] / sum(spent.values()) < 0.1


def test_a_turn_without_bulk_work_is_not_saved_up() -> None:
    turns = Turns(INTERACTIVE_MS)
    turns.charge(INTERACTIVE, 100 * INTERACTIVE_MS)
    assert turns.order()[0] == BULK
    turns.no_bulk()
    assert turns.order()[0] == INTERACTIVE


def test_bulk_is_bounded_like_interactive_while_that_waits() -> None:
    assert batching.limit_ms(BULK, True, COST, pace.CPU) == INTERACTIVE_MS
    assert batching.limit_ms(BULK, False, COST, pace.CPU) == BULK_MS
    assert batching.limit_ms(INTERACTIVE, False, COST, pace.CPU) == INTERACTIVE_MS


def test_a_batch_whose_own_cost_is_over_the_limit_may_be_as_long_again() -> None:
    slow = CostModel(Cost(batch_ms=2 * INTERACTIVE_MS, token_us=100.0))
    bound_ms = batching.limit_ms(INTERACTIVE, False, slow, pace.CPU)
    assert bound_ms == 4 * INTERACTIVE_MS
    backlog = backlog_of(*(unit() for _ in range(100)))
    [queue] = backlog.queues(INTERACTIVE)
    batch = batching.take(backlog, queue, slow, bound_ms)
    assert bound_ms - 2.0 < batch.predicted_ms <= bound_ms


def test_a_queue_is_full_when_more_would_not_fit() -> None:
    backlog = backlog_of(unit())
    [queue] = backlog.queues(INTERACTIVE)
    assert not batching.is_full(queue, COST, INTERACTIVE_MS)
    assert batching.is_full(queue, COST, 5.0)
    [alone] = backlog_of(unit(deliveries=2)).queues(INTERACTIVE)
    assert batching.is_full(alone, COST, INTERACTIVE_MS)


def test_what_leaves_from_the_middle_is_not_run() -> None:
    first, cancelled, last = unit(deadline_s=1), unit(deadline_s=2), unit(deadline_s=3)
    backlog = backlog_of(first, cancelled, last)
    backlog.remove(cancelled, Stage.GONE)
    assert next_batch(backlog).units == [first, last]
    assert backlog.waiting_ms(INTERACTIVE, lambda digest: True) == 0.0


def test_expired_units_are_taken_out() -> None:
    backlog = backlog_of(expired := unit(deadline_s=1), kept := unit(deadline_s=2))
    assert backlog.take_expired(1.0) == [expired]
    assert next_batch(backlog).units == [kept]


def test_credit_is_room_over_the_mean_cost() -> None:
    assert credit.messages(60.0, 2.0) == 30
    assert credit.messages(1.0, 50.0) == 1
    assert credit.messages(0.0, 1.0) == 0
    assert credit.messages(1e9, 0.0) == credit.PULL_MESSAGES
