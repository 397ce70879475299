"""Pulls: which are out, when they are over, and what is pulled next."""

from __future__ import annotations

import random

import pytest

from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.decisions.pull_plan import (
    DRY_S,
    FEW_WAIT_S,
    GRACE_S,
    PAUSE_S,
    PEEKS,
    WAIT_S,
    WAIT_SPREAD,
    WAITS_PER_S,
    Kind,
    PullPlan,
)
from shoal_worker.decisions.unit import BULK, INTERACTIVE

DUE_S = 0.02
UNSEEN_S = {INTERACTIVE: 0.02, BULK: 0.02}


def plan_of(*lanes: str, seed: int = 1) -> PullPlan:
    plan = PullPlan(random.Random(seed))
    plan.serve(lanes)
    return plan


def drained(plan: PullPlan, lane: str, taken: int, left: int, now_s: float, oldest_s: float = 0.01) -> None:
    """A drain asks for more than it gets, or for what it gets where more is left."""
    order = plan.drain(lane, INTERACTIVE, taken + (not left), now_s)
    for number in range(taken):
        waited_s = oldest_s * (taken - number) / taken
        plan.delivered(lane, INTERACTIVE, False, left + taken - 1 - number, now_s, waited_s)
    if not left:
        plan.ended(order.pull_id, empty=True, now_s=now_s)


def test_each_lane_and_class_waits_once() -> None:
    plan = plan_of("a", "b")
    orders = plan.wait(0.0)
    assert {(order.lane, order.work_class) for order in orders} == {
        (lane, work_class) for lane in "ab" for work_class in (INTERACTIVE, BULK)
    }
    assert all(order.waits and order.batch == 1 for order in orders)
    assert plan.wait(0.1) == []


def test_an_answered_or_expired_wait_is_renewed() -> None:
    plan = plan_of("a")
    first, second = plan.wait(0.0)
    plan.delivered("a", first.work_class, True, 0, 0.1)
    assert plan.ended(second.pull_id, empty=True, now_s=WAIT_S) == "a"
    assert len(plan.wait(WAIT_S)) == 2


def test_a_device_that_stays_idle_asks_seldom_whatever_went_before() -> None:
    plan = plan_of("a")
    plan._idle_s = 0.0
    now_s, asked = 0.0, 0
    while now_s < 10.0:
        orders = plan.wait(now_s)
        asked += len(orders)
        now_s += max(order.expires_s for order in orders)
        for order in orders:
            plan.ended(order.pull_id, empty=True, now_s=now_s)
    assert asked < 2 * 10.0 / (WAIT_SPREAD * WAIT_S)


def test_waiting_pulls_are_short_where_the_device_is_idle_for_a_moment_only() -> None:
    plan = plan_of("a")
    lengths = []
    for spell in range(20):
        now_s = float(spell)
        orders = plan.wait(now_s)
        lengths.append(max(order.expires_s for order in orders))
        plan.delivered("a", INTERACTIVE, True, 0, now_s + 0.01)
        for order in orders:
            plan.ended(order.pull_id, empty=True, now_s=now_s + 0.02)
    assert WAIT_SPREAD * WAIT_S <= lengths[0] <= WAIT_S
    assert lengths[-1] <= FEW_WAIT_S
    many = plan_of(*(f"lane-{number}" for number in range(8)))
    many._idle_s = 0.0
    lengths = [order.expires_s for order in many.wait(0.0)]
    assert WAIT_SPREAD * 16 / WAITS_PER_S <= min(lengths) <= max(lengths) <= 16 / WAITS_PER_S < WAIT_S


def test_waiting_pulls_of_a_worker_do_not_end_together() -> None:
    orders = plan_of(*(f"lane-{number}" for number in range(16))).wait(0.0)
    assert len({round(order.expires_s, 3) for order in orders}) > 16


def test_a_filled_drain_is_over_without_a_status() -> None:
    plan = plan_of("a")
    plan.drain("a", INTERACTIVE, 2, 0.0)
    plan.delivered("a", INTERACTIVE, False, 5, 0.0)
    assert plan.is_draining
    plan.delivered("a", INTERACTIVE, False, 4, 0.0)
    assert not plan.is_draining
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.0) == "a"


def test_an_empty_lane_is_left_alone_for_a_moment() -> None:
    plan = plan_of("a")
    order = plan.drain("a", INTERACTIVE, 8, 0.0)
    plan.ended(order.pull_id, empty=True, now_s=0.001)
    assert plan.unseen_lane(INTERACTIVE, 0.002) is None
    assert plan.unseen_lane(INTERACTIVE, 0.002 + DRY_S) == "a"
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.002 + DRY_S) is None


def test_a_lane_is_believed_to_fill_as_it_did_before() -> None:
    plan = plan_of("a")
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.0) is None
    drained(plan, "a", taken=10, left=0, now_s=0.1)  # 10 in 10 ms.
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.1005) is None
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.102) == "a"


def test_what_a_sibling_drained_is_known_to_be_gone_and_what_it_left_to_be_there() -> None:
    plan = plan_of("a")
    drained(plan, "a", taken=10, left=0, now_s=0.1)
    plan.sibling_drained(DrainNote("a", INTERACTIVE, 20, 0, 0.02, 0.0), 0.2)
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.2005) is None
    plan.sibling_drained(DrainNote("a", INTERACTIVE, 20, 5, 0.02, 0.003), 0.3)
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.3) == "a"
    plan.sibling_drained(DrainNote("unknown", INTERACTIVE, 1, 0, 0.0, 0.0), 0.3)


def test_a_drain_that_brought_something_is_told_once() -> None:
    plan = plan_of("a")
    drained(plan, "a", taken=4, left=2, now_s=0.1, oldest_s=0.008)
    [note] = plan.take_notes()
    assert note[:4] == ("a", INTERACTIVE, 4, 2)
    assert (note.oldest_s, note.newest_s) == (pytest.approx(0.008), pytest.approx(0.002))
    order = plan.drain("a", INTERACTIVE, 8, 0.2)
    plan.ended(order.pull_id, empty=True, now_s=0.2)
    assert plan.take_notes() == []


def test_the_fuller_lane_goes_first_until_another_is_due() -> None:
    plan = plan_of("full", "old")
    drained(plan, "full", taken=20, left=30, now_s=1.0, oldest_s=0.01)
    drained(plan, "old", taken=1, left=2, now_s=1.0, oldest_s=0.01)
    chosen = [plan.next_lane(INTERACTIVE, DUE_S, 1.0) for _ in range(200)]
    assert set(chosen) == {"full", "old"}, "of two lanes one is drawn at random, or siblings would run after the same"
    many = plan_of("full", "old", "b", "c")
    for lane, left in (("full", 30), ("old", 2), ("b", 3), ("c", 3)):
        drained(many, lane, taken=20, left=left, now_s=1.0 if lane != "old" else 0.95, oldest_s=0.5)
    chosen = [many.next_lane(INTERACTIVE, DUE_S, 1.0) for _ in range(500)]
    assert 0.4 < chosen.count("old") / 500 < 0.6, "whenever it is looked at"
    chosen = [many.next_lane(INTERACTIVE, 1.0, 1.0) for _ in range(500)]
    assert 0.4 < chosen.count("full") / 500 < 0.6


def test_lanes_that_were_not_seen_for_longest_are_peeked_a_few_at_a_time() -> None:
    plan = plan_of(*(f"lane-{number}" for number in range(10)))
    first = plan.peek(UNSEEN_S, 0.0)
    assert len(first) == PEEKS and all(order.kind is Kind.PEEK and order.batch == 1 for order in first)
    second = plan.peek(UNSEEN_S, 0.0)
    assert not {order[1:3] for order in first} & {order[1:3] for order in second}
    seen = first[0]
    plan.peeked(seen.pull_id, 0.001, found=True)
    for order in (*first[1:], *second):
        plan.ended(order.pull_id, empty=True, now_s=0.001)
    assert plan.next_lane(seen.work_class, DUE_S, 0.001) == seen.lane
    assert plan.peek(UNSEEN_S, 0.002)[0] not in first


def test_a_peek_that_could_not_tell_is_made_again_a_little_later_and_changes_nothing() -> None:
    plan = plan_of("a")
    for order in plan.peek(UNSEEN_S, 0.0):
        plan.peeked(order.pull_id, 0.001, found=False)
    assert plan.next_lane(INTERACTIVE, DUE_S, 0.001) is None
    assert not plan.peek(UNSEEN_S, 0.001 + DRY_S / 2)
    assert len(plan.peek(UNSEEN_S, 0.001 + DRY_S)) == 2


def test_a_peek_that_is_never_answered_is_given_up() -> None:
    plan = plan_of("a")
    assert len(plan.peek(UNSEEN_S, 0.0)) == 2
    assert plan.peek(UNSEEN_S, 0.1) == []
    plan.forget_late(GRACE_S)
    assert len(plan.peek(UNSEEN_S, GRACE_S)) == 2


def test_a_lane_without_consumers_is_paused_until_they_are_made() -> None:
    plan = plan_of("a")
    order = plan.drain("a", INTERACTIVE, 8, 0.0)
    assert plan.ended(order.pull_id, empty=False, now_s=0.0) == "a"
    assert plan.unseen_lane(INTERACTIVE, PAUSE_S / 2) is None
    plan.resume("a")
    assert plan.unseen_lane(INTERACTIVE, PAUSE_S / 2) == "a"


def test_late_pulls_are_given_up() -> None:
    plan = plan_of("a")
    plan.wait(0.0)
    plan.drain("a", INTERACTIVE, 8, 0.0)
    plan.forget_late(GRACE_S - 0.01)
    assert plan.is_draining
    plan.forget_late(WAIT_S + GRACE_S)
    assert not plan.is_draining
    assert len(plan.wait(1.0)) == 2


def test_a_reconnect_loses_every_pull() -> None:
    plan = plan_of("a")
    plan.wait(0.0)
    plan.drain("a", INTERACTIVE, 8, 0.0)
    plan.forget_all()
    assert not plan.is_draining
    assert len(plan.wait(0.0)) == 2


def test_lanes_that_stay_keep_their_state() -> None:
    plan = plan_of("a", "b")
    plan.wait(0.0)
    plan.serve(["b", "c"])
    assert {order.lane for order in plan.wait(0.0)} == {"c"}
    plan.delivered("a", INTERACTIVE, True, 9, 0.0)  # A late answer for a lane that is gone.
    assert plan.pending("a") == 0


def test_unknown_pulls_end_quietly() -> None:
    assert plan_of("a").ended(99, empty=True, now_s=0.0) is None


def test_a_lane_is_known_to_be_empty_from_pull_to_pull() -> None:
    plan = plan_of("a")
    assert plan.empty_s("a", 0.0) < 0
    for now_s in (1.0, 2.0, 4.0):
        for order in plan.wait(now_s):
            plan.ended(order.pull_id, empty=True, now_s=now_s + WAIT_S)
    assert plan.empty_s("a", 0.0) == 3.0
    assert plan.empty_s("a", 2.0) == 2.0 + WAIT_S
    assert plan.empty_s("a", 9.0) < 0
    plan.delivered("a", BULK, True, 0, 5.0)
    assert plan.empty_s("a", 0.0) < 0
    assert plan.empty_s("unknown", 0.0) < 0


def test_a_reconnect_makes_emptiness_unknown() -> None:
    plan = plan_of("a")
    for now_s in (1.0, 4.0):
        for order in plan.wait(now_s):
            plan.ended(order.pull_id, empty=True, now_s=now_s)
    assert plan.empty_s("a", 0.0) == 3.0
    plan.forget_all()
    assert plan.empty_s("a", 0.0) < 0
