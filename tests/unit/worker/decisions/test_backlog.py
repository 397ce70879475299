"""The backlog's queues: what is counted, what is in order, and what is taken out of the middle."""

from __future__ import annotations

from shoal_worker.decisions.backlog import Backlog, Queue
from shoal_worker.decisions.deadlines import SLACK, Deadlines
from shoal_worker.decisions.unit import BULK, INTERACTIVE, HeldUnit, Stage
from tests.unit.worker.units import DIGEST, unit


def backlog_of(*units: HeldUnit) -> Backlog:
    backlog = Backlog()
    for one in units:
        backlog.ready(one)
    return backlog


def queue_of(backlog: Backlog, work_class: str = INTERACTIVE) -> Queue:
    [queue] = backlog.queues(work_class)
    return queue


def test_what_is_expected_becomes_ready_and_leaves() -> None:
    backlog, one = Backlog(), unit(cost_ms=3.0)
    backlog.expect(one)
    assert not backlog.is_empty and list(backlog.queues(INTERACTIVE)) == []
    assert backlog.waiting_ms(INTERACTIVE, lambda digest: True) == 3.0
    backlog.remove(one, Stage.GONE)
    assert backlog.is_empty
    backlog.ready(one)
    assert queue_of(backlog).ready_ms == 3.0
    assert backlog.waiting_ms(INTERACTIVE, lambda digest: digest != DIGEST) == 0.0
    assert backlog.waiting_ms(BULK, lambda digest: True) == 0.0
    backlog.remove(one, Stage.RUNNING)
    assert backlog.is_empty and one.stage is Stage.RUNNING


def test_units_are_listed_as_they_would_be_taken() -> None:
    flood = [unit(tenant="a", cost_ms=1.0, deadline_s=number) for number in range(5)]
    other = [unit(tenant="b", cost_ms=2.0, deadline_s=10.0 + number) for number in range(2)]
    backlog = backlog_of(*flood, *other)
    queue = queue_of(backlog)
    listed = queue.units()
    taken = []
    while (head := queue.head()) is not None:
        backlog.remove(head, Stage.RUNNING)
        taken.append(head)
    assert taken == listed
    assert [one.tenant for one in taken] == ["a", "b", "a", "a", "b", "a", "a"]


def test_queues_are_fair_by_themselves() -> None:
    bulk = [unit(tenant="a", cost_ms=50.0, work_class=BULK) for _ in range(4)]
    backlog = backlog_of(
        *bulk, unit(tenant="a", cost_ms=1.0, deadline_s=1.0), unit(tenant="b", cost_ms=1.0, deadline_s=2.0)
    )
    for one in bulk[:3]:
        backlog.remove(one, Stage.RUNNING)
    assert [one.tenant for one in queue_of(backlog).units()] == ["a", "b"]


def test_units_expire_wherever_they_stand() -> None:
    kept = [unit(tenant="a", cost_ms=1.0, deadline_s=9.0) for _ in range(3)]
    gone = [unit(tenant="b", cost_ms=99.0, deadline_s=number / 10) for number in range(5)]
    backlog = backlog_of(*kept, *gone, bulk := unit(work_class=BULK, deadline_s=0.5))
    assert queue_of(backlog).head() is gone[0]
    backlog.remove(gone[0], Stage.RUNNING)  # Its tenant is far behind now.
    assert backlog.take_expired(1.0) == [*gone[1:], bulk]
    assert all(one.stage is Stage.GONE for one in gone[1:])
    assert queue_of(backlog).units() == kept
    assert queue_of(backlog).ready_ms == 3.0


def test_a_unit_that_comes_back_stands_in_the_queue_once() -> None:
    backlog = backlog_of(one := unit(cost_ms=2.0))
    backlog.remove(one, Stage.PARKED)
    backlog.ready(one)
    assert queue_of(backlog).units() == [one] and queue_of(backlog).ready == 1
    backlog.remove(one, Stage.RUNNING)
    assert backlog.is_empty and backlog.take_expired(1e9) == []


def test_deadlines_keep_no_unit_that_left() -> None:
    deadlines = Deadlines()
    deadlines.add(first := unit(deadline_s=0.0, stage=Stage.READY), 0)
    for number in range(1, 10_000):
        deadlines.add(one := unit(deadline_s=number, stage=Stage.READY), number)
        one.stage = Stage.GONE
        deadlines.left()
    assert len(deadlines._heap) <= SLACK + 3
    assert deadlines.first() is first and deadlines.in_order() == [first] and deadlines.count == 1
    first.stage = Stage.RUNNING
    deadlines.left()
    assert deadlines.first() is None and deadlines.count == 0
