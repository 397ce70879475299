"""One lane over all workers: how many serve it, what is queued, how long a unit would wait. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scheduler.v1 import scheduler_pb2

RANK = {
    # Below ABSENT: one worker that fails is no reason while another may still load.
    scheduler_pb2.RESIDENCY_FAILED: 0,
    scheduler_pb2.RESIDENCY_UNSPECIFIED: 1,
    scheduler_pb2.RESIDENCY_ABSENT: 1,
    scheduler_pb2.RESIDENCY_LOADING: 2,
    scheduler_pb2.RESIDENCY_READY: 3,
}
UNMEASURED_DRAIN_MS_PER_SECOND = 1000.0
"""Of a ready worker that has not finished a batch yet: a millisecond of predicted cost takes one."""
RELATIVE_CHANGE = 0.1
ABSOLUTE_CHANGE_MS = 1.0


def lane_state(
    token: str,
    seen: Sequence[tuple[scheduler_pb2.ReportRequest, scheduler_pb2.WorkerLane]],
    ready_lately: bool = False,
) -> scheduler_pb2.LaneState:
    """A lane's state from the workers that may serve it.

    It is FAILED, which ends the calls that wait on it, only when every one of them says so and none was
    ready lately: a worker that restarts is not seen, and will serve again.

    queued_ms is what workers hold and have not finished, plus what waits in the broker: all workers see
    the same queue there, so the largest guess counts once. wait_ms = queued ÷ drain; a lane that nobody
    serves yet is taken to drain as one unmeasured worker would. window_ms sums the devices' over ready
    workers; ms_per_token is the mean of those that measured one, by what each drains.
    """
    ready = [
        (lane, report.device.window_ms, report.drain_ms_per_second or UNMEASURED_DRAIN_MS_PER_SECOND)
        for report, lane in seen
        if lane.residency == scheduler_pb2.RESIDENCY_READY
    ]
    drain = sum(drain_here for _, _, drain_here in ready)
    in_broker_ms = max((lane.pending_units * lane.unit_ms for _, lane in seen), default=0.0)
    queued_ms = sum(lane.backlog_ms for _, lane in seen) + in_broker_ms
    best = max((lane for _, lane in seen), key=lambda lane: RANK[lane.residency], default=None)
    residency = best.residency if best and best.residency else scheduler_pb2.RESIDENCY_ABSENT
    if residency == scheduler_pb2.RESIDENCY_FAILED and ready_lately:
        residency = scheduler_pb2.RESIDENCY_ABSENT
    state = scheduler_pb2.LaneState(
        lane=token,
        residency=residency,
        workers=len(ready),
        queued_ms=queued_ms,
        drain_ms_per_second=drain,
        wait_ms=queued_ms / (drain or UNMEASURED_DRAIN_MS_PER_SECOND) * 1000,
        window_ms=sum(window_ms for _, window_ms, _ in ready),
        ms_per_token=_mean([(lane.ms_per_token, drain_here) for lane, _, drain_here in ready if lane.ms_per_token]),
    )
    if best and state.residency == scheduler_pb2.RESIDENCY_FAILED:
        state.error = best.error
    elif best and state.residency == scheduler_pb2.RESIDENCY_LOADING:
        state.progress = best.progress
    return state


def differs(old: scheduler_pb2.LaneState, new: scheduler_pb2.LaneState) -> bool:
    """Whether a gateway would decide otherwise: anything but measures, or a time by a tenth and a millisecond,
    or a token's cost by a tenth."""
    said = ("residency", "workers", "error", "progress")
    if any(getattr(old, field) != getattr(new, field) for field in said):
        return True
    times = ("queued_ms", "drain_ms_per_second", "wait_ms", "window_ms")
    return any(_far(getattr(old, field), getattr(new, field), ABSOLUTE_CHANGE_MS) for field in times) or _far(
        old.ms_per_token, new.ms_per_token, 0.0
    )


def _far(old: float, new: float, least: float) -> bool:
    return abs(new - old) > max(least, RELATIVE_CHANGE * max(old, new))


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """The mean of values with their weights; 0 of none."""
    weight = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / weight if weight else 0.0
