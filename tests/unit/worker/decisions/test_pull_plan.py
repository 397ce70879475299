"""Pulls: which are out, when they are over, and what is pulled next."""

from __future__ import annotations

import random

from shoal_worker.decisions.pull_plan import DRY_S, GRACE_S, PAUSE_S, UNSEEN_S, WAIT_S, PullPlan
from shoal_worker.decisions.unit import BULK, INTERACTIVE


def plan_of(*lanes: str, seed: int = 1) -> PullPlan:
    plan = PullPlan(random.Random(seed))
    plan.serve(lanes)
    return plan


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


def test_a_filled_drain_is_over_without_a_status() -> None:
    plan = plan_of("a")
    plan.drain("a", INTERACTIVE, 2, 0.0)
    plan.delivered("a", INTERACTIVE, False, 5, 0.0)
    assert plan.is_draining
    plan.delivered("a", INTERACTIVE, False, 4, 0.0)
    assert not plan.is_draining
    assert plan.next_lane(INTERACTIVE, 0.0, only_known=True) == "a"


def test_an_empty_lane_is_left_alone_for_a_moment() -> None:
    plan = plan_of("a")
    order = plan.drain("a", INTERACTIVE, 8, 0.0)
    plan.ended(order.pull_id, empty=True, now_s=0.001)
    assert plan.next_lane(INTERACTIVE, 0.002) is None
    assert plan.next_lane(INTERACTIVE, 0.002 + DRY_S) == "a"
    assert plan.next_lane(INTERACTIVE, 0.002 + DRY_S, only_known=True) is None


def test_the_last_message_says_that_a_lane_is_empty() -> None:
    plan = plan_of("a")
    plan.wait(0.0)
    plan.delivered("a", INTERACTIVE, True, 0, 1.0)
    assert plan.next_lane(INTERACTIVE, 1.001) is None


def test_a_lane_with_waiting_work_goes_first_and_ties_are_random() -> None:
    plan = plan_of("a", "b", "c")
    for lane, pending in (("a", 0), ("b", 3), ("c", 0)):
        plan.delivered(lane, INTERACTIVE, True, pending, 0.0)
    assert {plan.next_lane(INTERACTIVE, DRY_S) for _ in range(20)} == {"b"}
    assert {plan.next_lane(INTERACTIVE, UNSEEN_S) for _ in range(100)} == {"a", "b", "c"}
    untouched = plan_of("a", "b", "c", seed=7)
    assert {untouched.next_lane(INTERACTIVE, 0.0) for _ in range(100)} == {"a", "b", "c"}


def test_a_lane_without_consumers_is_paused_until_they_are_made() -> None:
    plan = plan_of("a")
    order = plan.drain("a", INTERACTIVE, 8, 0.0)
    assert plan.ended(order.pull_id, empty=False, now_s=0.0) == "a"
    assert plan.next_lane(INTERACTIVE, PAUSE_S / 2) is None
    plan.resume("a")
    assert plan.next_lane(INTERACTIVE, PAUSE_S / 2) == "a"


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
