"""Lane states are sums that can be done by hand."""

from __future__ import annotations

import pytest

from shoal.scheduler.v1 import scheduler_pb2
from shoal_scheduler.lane_state import differs, lane_state
from tests.unit.scheduler.reports import ABSENT, FAILED, LOADING, READY, lane, report


def state_of(*reports: scheduler_pb2.ReportRequest) -> scheduler_pb2.LaneState:
    return lane_state("a", [(each, each.lanes[0]) for each in reports])


def test_a_lane_that_nobody_reports_is_absent():
    assert state_of() == scheduler_pb2.LaneState(lane="a", residency=ABSENT)


def test_backlogs_add_up_and_the_brokers_queue_counts_once():
    state = state_of(
        report("w0", lane("a", backlog_ms=30, pending_units=10, unit_ms=4), drain=500),
        report("w1", lane("a", backlog_ms=10, pending_units=8, unit_ms=4), drain=300),
    )
    assert state.queued_ms == 30 + 10 + 10 * 4
    assert state.drain_ms_per_second == 800
    assert state.wait_ms == 80 / 800 * 1000
    assert state.workers == 2


def test_a_ready_worker_without_a_measure_drains_a_millisecond_a_millisecond():
    state = state_of(report("w0", lane("a", backlog_ms=50)))
    assert (state.drain_ms_per_second, state.wait_ms) == (1000, 50)


def test_only_ready_workers_drain():
    state = state_of(report("w0", lane("a", LOADING, backlog_ms=50), drain=700))
    assert (state.workers, state.drain_ms_per_second, state.wait_ms) == (0, 0, 50)


def test_windows_of_ready_workers_add_up():
    state = state_of(
        report("w0", lane("a"), window=240),
        report("w1", lane("a"), window=60),
        report("w2", lane("a", LOADING), window=1_000),
    )
    assert state.window_ms == 300


def test_a_tokens_cost_is_the_mean_by_what_each_worker_drains():
    state = state_of(
        report("w0", lane("a", ms_per_token=0.2), drain=900),
        report("w1", lane("a", ms_per_token=0.4), drain=300),
        report("w2", lane("a"), drain=5_000),  # It has measured none.
        report("w3", lane("a", LOADING, ms_per_token=9.0), drain=5_000),
    )
    assert state.ms_per_token == pytest.approx((0.2 * 900 + 0.4 * 300) / 1_200)
    assert state_of(report("w0", lane("a"))).ms_per_token == 0.0


@pytest.mark.parametrize(
    ("residencies", "best"),
    [
        ([ABSENT, FAILED, LOADING, READY], READY),
        ([FAILED, LOADING, ABSENT], LOADING),
        ([ABSENT, FAILED], ABSENT),
        ([FAILED, scheduler_pb2.RESIDENCY_UNSPECIFIED], ABSENT),
        ([FAILED, FAILED], FAILED),
        ([ABSENT, scheduler_pb2.RESIDENCY_UNSPECIFIED], ABSENT),
        ([scheduler_pb2.RESIDENCY_UNSPECIFIED], ABSENT),
    ],
)
def test_the_best_residency_counts(residencies: list[scheduler_pb2.Residency], best: scheduler_pb2.Residency):
    reports = [report(f"w{i}", lane("a", each, error="e", progress="p")) for i, each in enumerate(residencies)]
    state = state_of(*reports)
    assert state.residency == best
    assert state.error == ("e" if best == FAILED else "")
    assert state.progress == ("p" if best == LOADING else "")


def test_a_difference_is_told_when_a_gateway_would_decide_otherwise():
    old = scheduler_pb2.LaneState(
        lane="a", residency=READY, workers=2, queued_ms=100, wait_ms=100, window_ms=100, ms_per_token=0.05
    )

    def changed(**fields: object) -> scheduler_pb2.LaneState:
        new = scheduler_pb2.LaneState.FromString(old.SerializeToString())
        for field, value in fields.items():
            setattr(new, field, value)
        return new

    assert not differs(old, changed())
    assert not differs(old, changed(queued_ms=105, wait_ms=95))
    assert differs(old, changed(queued_ms=112))
    assert differs(old, changed(wait_ms=0))
    assert differs(old, changed(residency=LOADING))
    assert differs(old, changed(workers=1))
    assert differs(old, changed(progress="half"))
    assert differs(old, changed(window_ms=200))
    assert not differs(old, changed(ms_per_token=0.052))
    assert differs(old, changed(ms_per_token=0.06))
    assert differs(old, changed(ms_per_token=0.0))
    tiny = scheduler_pb2.LaneState(lane="a", wait_ms=0.2)
    assert not differs(tiny, scheduler_pb2.LaneState(lane="a", wait_ms=0.9))
