"""Order between tenants: each gets its share of what runs, and one alone gets the order of deadlines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_worker.decisions.deadlines import SLACK
from shoal_worker.decisions.fair_order import FairOrder
from shoal_worker.decisions.unit import HeldUnit, Stage
from tests.unit.worker.units import unit

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 3.0, "d": 0.5}
tenants = st.sampled_from(sorted(WEIGHTS))
costs_ms = st.floats(0.01, 100.0)
deadlines_s = st.floats(0.0, 100.0)


@st.composite
def units(draw: st.DrawFn) -> HeldUnit:
    return unit(tenant=draw(tenants), cost_ms=draw(costs_ms), deadline_s=draw(deadlines_s))


steps = st.lists(st.one_of(units(), st.just("run"), st.integers(0, 50)), max_size=120)
"""A unit comes, the next one runs, or one of those that wait is cancelled."""


def order_of(*waiting: HeldUnit) -> FairOrder:
    order = FairOrder(WEIGHTS.__getitem__)
    for number, one in enumerate(waiting):
        add(order, one, number)
    return order


def add(order: FairOrder, one: HeldUnit, number: int) -> None:
    one.stage = Stage.READY
    order.add(one, number)


def leave(order: FairOrder, one: HeldUnit, *, runs: bool) -> None:
    one.stage = Stage.RUNNING if runs else Stage.GONE
    order.left(one, runs=runs)


def run_next(order: FairOrder) -> HeldUnit:
    one = order.head()
    assert one is not None
    leave(order, one, runs=True)
    return one


def run_all(order: FairOrder) -> list[HeldUnit]:
    ran = []
    while order.head() is not None:
        ran.append(run_next(order))
    return ran


@given(st.lists(st.tuples(costs_ms, st.sampled_from([1.0, 2.0, 3.0])), max_size=40))
def test_one_tenant_alone_has_the_order_of_deadlines(values: list[tuple[float, float]]) -> None:
    waiting = [unit(tenant="a", cost_ms=cost_ms, deadline_s=deadline_s) for cost_ms, deadline_s in values]
    assert run_all(order_of(*waiting)) == sorted(waiting, key=lambda one: one.deadline_s)


@given(steps)
def test_nothing_is_lost_and_nothing_runs_twice(taken: list) -> None:
    order, waiting, ran, numbers = order_of(), [], [], itertools.count()
    for step in taken:
        if isinstance(step, HeldUnit):
            add(order, step, next(numbers))
            waiting.append(step)
        elif not waiting:
            assert order.head() is None
        elif step == "run":
            ran.append(run_next(order))
            waiting.remove(ran[-1])
        else:
            leave(order, waiting.pop(step % len(waiting)), runs=False)
    expected = order.in_order()
    assert run_all(order) == expected
    assert set(expected) == set(waiting) and len(expected) == len(waiting)
    assert not set(ran) & set(waiting) and len(set(ran)) == len(ran)


@given(steps)
def test_tenants_that_wait_get_their_shares_to_within_a_unit_of_each(taken: list) -> None:
    order, numbers = order_of(), itertools.count()
    waiting = dict.fromkeys(WEIGHTS, 0)
    largest_ms = dict.fromkeys(WEIGHTS, 0.0)
    history: list[tuple[str, float, frozenset[str]]] = []
    for step in [*taken, *["run"] * len(taken)]:
        if isinstance(step, HeldUnit):
            add(order, step, next(numbers))
            waiting[step.tenant] += 1
            largest_ms[step.tenant] = max(largest_ms[step.tenant], step.cost_ms)
        elif step == "run" and order.head() is not None:
            backlogged = frozenset(tenant for tenant, count in waiting.items() if count)
            one = run_next(order)
            waiting[one.tenant] -= 1
            history.append((one.tenant, one.cost_ms / WEIGHTS[one.tenant], backlogged))
    for first, second in itertools.combinations(WEIGHTS, 2):
        bound_ms = largest_ms[first] / WEIGHTS[first] + largest_ms[second] / WEIGHTS[second]
        ahead_ms = least_ms = most_ms = 0.0
        for tenant, share_ms, backlogged in history:
            if {first, second} <= backlogged:
                ahead_ms += share_ms if tenant == first else -share_ms if tenant == second else 0.0
                least_ms, most_ms = min(least_ms, ahead_ms), max(most_ms, ahead_ms)
                assert most_ms - least_ms <= bound_ms + 1e-6
            else:
                ahead_ms = least_ms = most_ms = 0.0


def test_shares_follow_weights() -> None:
    waiting = [unit(tenant=tenant, cost_ms=2.0) for _ in range(100) for tenant in "acd"]
    ran = run_all(order_of(*waiting))[:90]
    counts = {tenant: sum(one.tenant == tenant for one in ran) for tenant in "acd"}
    assert counts == {"a": pytest.approx(20, abs=1), "c": pytest.approx(60, abs=1), "d": pytest.approx(10, abs=1)}


def test_a_flood_does_not_hold_up_another_tenant() -> None:
    flood = [unit(tenant="a", cost_ms=1.0, deadline_s=1.0) for _ in range(1_000)]
    order = order_of(*flood)
    for _ in range(200):
        run_next(order)
    add(order, late := unit(tenant="b", cost_ms=1.0, deadline_s=99.0), 5_000)
    assert late in (run_next(order), run_next(order))


def test_a_tenant_that_was_away_saved_up_nothing_and_owes_nothing_for_leaving() -> None:
    order = order_of(*(unit(tenant="a", cost_ms=1.0) for _ in range(500)))
    add(order, unit(tenant="b", cost_ms=1.0), 1_000)
    for _ in range(100):
        run_next(order)
    for number in range(2_000, 2_100):
        add(order, unit(tenant="b", cost_ms=1.0), number)
    assert sum(run_next(order).tenant == "b" for _ in range(40)) == pytest.approx(20, abs=1)


def test_a_large_unit_is_paid_for_after_it_ran() -> None:
    small = [unit(tenant="b", cost_ms=1.0) for _ in range(40)]
    order = order_of(
        unit(tenant="a", cost_ms=20.0, deadline_s=0.0), unit(tenant="a", cost_ms=1.0, deadline_s=1.0), *small
    )
    ran = run_all(order)
    assert ran[0].tenant == "a"
    assert [one.tenant for one in ran[1:20]] == ["b"] * 19


def test_tenants_that_start_together_go_by_deadline() -> None:
    late, soon = unit(tenant="a", deadline_s=9.0, cost_ms=1.0), unit(tenant="b", deadline_s=1.0, cost_ms=1.0)
    assert run_all(order_of(late, soon)) == [soon, late]
    order = order_of(late)
    add(order, urgent := unit(tenant="a", deadline_s=0.5, cost_ms=1.0), 1)
    add(order, soon, 2)
    assert run_all(order) == [urgent, soon, late]


def test_what_left_takes_no_room() -> None:
    order = order_of(unit(tenant="a", cost_ms=1.0), unit(tenant="b", cost_ms=1.0))
    run_next(order)
    for number in range(10_000):
        tenant = f"a{number % 3_000}"
        WEIGHTS.setdefault(tenant, 1.0)
        add(order, one := unit(tenant=tenant, cost_ms=1.0, deadline_s=-number), 10 + number)
        leave(order, one, runs=False)
    assert len(order._heap) < 10 * SLACK
    assert len(order._shares) < 10 * SLACK
