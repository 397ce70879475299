"""Whether a lane can answer within a request's time, and what to say when it did not: pure."""

from __future__ import annotations

from shoal.scheduler.v1 import scheduler_pb2
from shoal_common import errors
from shoal_gateway.lane_states import FRESH_S, KnownLane

LEAST_RETRY_S = 0.1
MOST_RETRY_S = 30.0
LOADING_RETRY_S = 2.0
NOT_LOADED = (scheduler_pb2.RESIDENCY_ABSENT, scheduler_pb2.RESIDENCY_LOADING)


def refusal(lane: KnownLane | None, model: str, budget_s: float, now_s: float) -> errors.CallError | None:
    """Why a request must not be queued; None if it may. A lane that nobody speaks of is open.

    `now_s` is time.monotonic(). A model that still loads is no reason: it may be there in time.
    """
    if lane is None:
        return None
    if lane.state.residency == scheduler_pb2.RESIDENCY_FAILED:
        return failed(lane, model)
    wait_s = lane.state.wait_ms / 1000
    # A queue that long changes all the time: word of it that is old tells of a scheduler that hangs.
    if wait_s <= budget_s or lane.state.residency in NOT_LOADED or now_s - lane.heard_s > FRESH_S:
        return None
    retry_s = min(max(wait_s - budget_s, LEAST_RETRY_S), MOST_RETRY_S)
    return errors.overloaded(
        f"the model {model} would begin in {wait_s:.2f} s, and {budget_s:.2f} s are left; "
        f"try again in {retry_s:.1f} s or allow more time",
        retry_s,
    )


def failed(lane: KnownLane, model: str) -> errors.CallError:
    """FAILED_PRECONDITION with the reason why the model cannot be loaded."""
    return errors.failed_precondition("MODEL_FAILED", f"the model {model} could not be loaded: {lane.state.error}")


def too_late(lane: KnownLane | None, model: str, budget_s: float) -> errors.CallError:
    """What a request is told when its time is up and the queue holds its units."""
    if lane is not None and lane.state.residency == scheduler_pb2.RESIDENCY_FAILED:
        return failed(lane, model)
    if lane is not None and lane.state.residency in NOT_LOADED:
        loading = lane.state.residency == scheduler_pb2.RESIDENCY_LOADING
        progress = lane.state.progress or ("loading" if loading else "no worker holds it yet")
        return errors.unavailable(
            f"the model {model} was not loaded within {budget_s:.3g} s ({progress}); try again",
            LOADING_RETRY_S,
            "MODEL_LOADING",
            {"model": model, "progress": progress},
        )
    return expired(f"the model {model} did not answer within {budget_s:.3g} s; its work is cancelled")


def expired(message: str = "the deadline passed before the request could be queued") -> errors.CallError:
    """DEADLINE_EXCEEDED."""
    return errors.deadline_exceeded(message)
