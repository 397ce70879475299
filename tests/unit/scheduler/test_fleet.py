"""The fleet: who is there, what each is to hold, which lanes there are."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_scheduler.fleet import IDLE_FRESH_S, READY_LATELY_S, REPORT_LIFE_S, Fleet, Wanted
from tests.unit.scheduler.reports import ABSENT, FAILED, LOADING, READY, lane, report

B = Wanted("b", "default", "lane-b", "digest-b")
A = Wanted("a", "default", "lane-a", "digest-a")
OTHER = Wanted("c", "gpu", "lane-c", "digest-c")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return Fleet(clock)


def names(fleet: Fleet) -> list[str]:
    return [each.worker for each in fleet.reports()]


def test_a_worker_is_to_hold_the_models_of_its_pool_by_name(fleet: Fleet):
    fleet.observe(1, report("w0"))
    fleet.want([B, OTHER, A])
    assert fleet.plan("w0") == ("digest-a", "digest-b")
    fleet.want([])
    assert fleet.plan("w0") == ()


def test_there_is_no_plan_before_the_models_are_known(fleet: Fleet):
    fleet.observe(1, report("w0"))
    assert fleet.plan("w0") is None
    fleet.want([A])
    assert fleet.plan("somebody else") is None


def test_a_worker_is_gone_with_its_seat_but_not_with_an_older_one(fleet: Fleet):
    fleet.observe(1, report("w0"))
    fleet.observe(2, report("w0"))
    fleet.gone(1, "w0")
    assert names(fleet) == ["w0"]
    fleet.gone(2, "w0")
    fleet.gone(2, "w0")
    assert names(fleet) == []


def test_silent_workers_expire_and_come_back(fleet: Fleet, clock: Clock):
    fleet.observe(1, report("w0"))
    clock.now_s += REPORT_LIFE_S / 2
    fleet.observe(2, report("w1"))
    assert not fleet.expire()
    clock.now_s += REPORT_LIFE_S / 2 + 0.1
    assert fleet.expire()
    assert names(fleet) == ["w1"]
    fleet.observe(1, report("w0"))
    assert names(fleet) == ["w0", "w1"]


def test_lanes_are_those_registered_and_those_reported(fleet: Fleet):
    fleet.want([A, B])
    fleet.observe(1, report("w0", lane("lane-a", READY), lane("lane-old", LOADING)))
    residencies = {token: state.residency for token, state in fleet.lane_states().items()}
    assert residencies == {"lane-a": READY, "lane-b": ABSENT, "lane-old": LOADING}


def test_a_lane_fails_only_when_every_worker_of_its_pool_says_so(fleet: Fleet):
    fleet.want([A])
    fleet.observe(1, report("w0", lane("lane-a", FAILED, error="bad weights")))
    assert fleet.lane_states()["lane-a"].residency == FAILED
    fleet.observe(2, report("w1"))
    assert fleet.lane_states()["lane-a"].residency == ABSENT, "it has yet to load it"
    fleet.observe(2, report("w1", lane("lane-a", LOADING)))
    assert fleet.lane_states()["lane-a"].residency == LOADING
    fleet.observe(2, report("w1", lane("lane-a", FAILED, error="bad weights")))
    state = fleet.lane_states()["lane-a"]
    assert (state.residency, state.error) == (FAILED, "bad weights")


def test_workers_of_another_runtime_count_neither_for_nor_against_a_lane(fleet: Fleet):
    simulated = Wanted("sim", "default", "lane-sim", "digest-sim", ("sim",))
    fleet.want([A, simulated])
    fleet.observe(1, report("w0", lane("lane-a", FAILED, error="bad weights")))
    on_sim = report("sim-0", lane("lane-sim", READY))
    on_sim.device.name = "sim:0"
    fleet.observe(2, on_sim)
    assert fleet.plan("w0") == ("digest-a",)
    assert fleet.plan("sim-0") == ("digest-sim",)
    states = fleet.lane_states()
    assert (states["lane-a"].residency, states["lane-sim"].residency) == (FAILED, READY)


def test_a_lane_whose_ready_worker_restarts_beside_a_failed_one_is_not_given_up(fleet: Fleet, clock: Clock):
    fleet.want([A])
    fleet.observe(1, report("w0", lane("lane-a", FAILED, error="out of memory")))
    fleet.observe(2, report("w1", lane("lane-a", READY)))
    fleet.gone(2, "w1")
    for _ in range(int(READY_LATELY_S)):
        assert fleet.lane_states()["lane-a"].residency == ABSENT
        clock.now_s += 1.0
        fleet.observe(1, report("w0", lane("lane-a", FAILED, error="out of memory")))
        fleet.expire()
    assert fleet.lane_states()["lane-a"].residency == FAILED, "nobody came back"


def idle_lanes(fleet: Fleet, worker: str) -> tuple[str, ...]:
    fleet.find_idle()
    return fleet.idle_lanes(worker)


def test_a_worker_is_told_of_its_lanes_that_are_idle_on_another_machine(fleet: Fleet):
    fleet.observe(1, report("busy", lane("b", backlog_ms=50), lane("a"), lane("c"), machine="here"))
    fleet.observe(2, report("sibling", lane("a"), lane("b"), machine="here"))
    assert idle_lanes(fleet, "busy") == (), "a sibling is helped through the exchange"
    fleet.observe(3, report("far", lane("b"), lane("a"), lane("d"), lane("c", LOADING), machine="there"))
    assert idle_lanes(fleet, "busy") == ("a", "b")
    assert idle_lanes(fleet, "far") == ("a", "b"), "the sibling has nothing to do either"
    fleet.gone(2, "sibling")
    assert idle_lanes(fleet, "far") == ()
    assert idle_lanes(fleet, "nobody") == ()


@pytest.mark.parametrize("work", [{"backlog_ms": 0.5}, {"pending_units": 1}])
def test_a_worker_with_work_on_any_lane_is_idle_for_none(fleet: Fleet, work: dict[str, Any]):
    fleet.observe(1, report("busy", lane("a", backlog_ms=50)))
    fleet.observe(2, report("far", lane("a"), lane("b", **work)))
    assert idle_lanes(fleet, "busy") == ()


def test_an_old_word_of_idleness_counts_no_more(fleet: Fleet, clock: Clock):
    fleet.observe(1, report("busy", lane("a", backlog_ms=50)))
    fleet.observe(2, report("far", lane("a")))
    assert fleet.find_idle()
    assert not fleet.find_idle(), "nothing changed"
    assert fleet.idle_lanes("busy") == ("a",)
    clock.now_s += IDLE_FRESH_S + 0.1
    assert fleet.find_idle()
    assert fleet.idle_lanes("busy") == ()
