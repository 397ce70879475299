"""Admission and deadlines: refused at once when the wait doesn't fit, typed when time is up."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2, error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduler.v1 import scheduler_pb2
from shoal_common import limits
from shoal_common.errors import CallError
from shoal_gateway import admission, deadlines
from shoal_gateway.lane_states import FRESH_S, KnownLane

READY = scheduler_pb2.RESIDENCY_READY
FAILED = scheduler_pb2.RESIDENCY_FAILED
NOW_S = 1000.0


def lane(residency: scheduler_pb2.Residency, heard_s: float = NOW_S, **fields) -> KnownLane:
    return KnownLane(scheduler_pb2.LaneState(residency=residency, **fields), heard_s)


def retry_s(error: CallError) -> float:
    retry = next(detail for detail in error.details if isinstance(detail, error_details_pb2.RetryInfo))
    return retry.retry_delay.ToMilliseconds() / 1000


def test_a_lane_that_nobody_speaks_of_is_open() -> None:
    assert admission.refusal(None, "m", 0.001, NOW_S) is None


def test_the_wait_must_fit_the_deadline() -> None:
    assert admission.refusal(lane(READY, wait_ms=2000), "m", 2.0, NOW_S) is None
    error = admission.refusal(lane(READY, wait_ms=2000), "m", 1.5, NOW_S)
    assert error and (error.code, error.reason) == (code_pb2.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert retry_s(error) == 0.5


@pytest.mark.parametrize(("wait_ms", "expected_s"), [(1001, admission.LEAST_RETRY_S), (1e9, admission.MOST_RETRY_S)])
def test_retry_times_are_bounded(wait_ms: float, expected_s: float) -> None:
    error = admission.refusal(lane(READY, wait_ms=wait_ms), "m", 1.0, NOW_S)
    assert error and retry_s(error) == expected_s


def test_old_waits_count_as_none() -> None:
    assert admission.refusal(lane(READY, NOW_S - FRESH_S - 0.1, wait_ms=9e9), "m", 1.0, NOW_S) is None


@pytest.mark.parametrize("residency", admission.NOT_LOADED)
def test_a_model_that_loads_is_waited_for_and_then_named(residency: scheduler_pb2.Residency) -> None:
    state = lane(residency, wait_ms=9e9, progress="weights 40 %")
    assert admission.refusal(state, "m", 1.0, NOW_S) is None
    error = admission.too_late(state, "m", 1.0)
    assert (error.code, error.reason) == (code_pb2.UNAVAILABLE, "MODEL_LOADING")
    assert error.details[0].metadata["progress"] == "weights 40 %"  # pyright: ignore[reportAttributeAccessIssue]
    assert retry_s(error) > 0


def test_a_model_that_failed() -> None:
    state = lane(FAILED, heard_s=0, error="shape mismatch")
    for error in (admission.refusal(state, "m", 1.0, NOW_S), admission.too_late(state, "m", 1.0)):
        assert error and (error.code, error.reason) == (code_pb2.FAILED_PRECONDITION, "MODEL_FAILED")
        assert "shape mismatch" in error.message


@pytest.mark.parametrize("state", [None, lane(READY)])
def test_time_is_up(state: KnownLane | None) -> None:
    assert admission.too_late(state, "m", 1.0).code == code_pb2.DEADLINE_EXCEEDED


def test_budgets() -> None:
    assert deadlines.budget_s(None) == limits.DEADLINE_DEFAULT_S
    assert deadlines.budget_s(1e9) == limits.DEADLINE_MAX_S
    assert deadlines.budget_s(0.0) == 0
    assert deadlines.budget_s(None, 250) == 0.25
    assert deadlines.budget_s(60.0, 250) == 0.25
    assert deadlines.budget_s(10.0) == pytest.approx(9.68)
    assert deadlines.budget_s(0.01) == pytest.approx(0.00873)
    assert deadlines.budget_s(1.0, 5000) == pytest.approx(0.95)


@given(st.one_of(st.none(), st.floats(0, 1e6)), st.integers(0, 2**32 - 1))
def test_a_budget_never_exceeds_what_bounds_it(call_left_s: float | None, asked_ms: int) -> None:
    budget = deadlines.budget_s(call_left_s, asked_ms)
    assert 0 <= budget <= limits.DEADLINE_MAX_S
    assert call_left_s is None or budget <= call_left_s
    assert not asked_ms or budget <= asked_ms / 1000
