"""Reports of workers, as the scheduler's tests need them."""

from __future__ import annotations

from shoal.scheduler.v1 import scheduler_pb2

ABSENT = scheduler_pb2.RESIDENCY_ABSENT
LOADING = scheduler_pb2.RESIDENCY_LOADING
READY = scheduler_pb2.RESIDENCY_READY
FAILED = scheduler_pb2.RESIDENCY_FAILED


def lane(token: str, residency: scheduler_pb2.Residency = READY, **fields: object) -> scheduler_pb2.WorkerLane:
    return scheduler_pb2.WorkerLane(lane=token, residency=residency, **fields)  # pyright: ignore[reportArgumentType]


def report(
    worker: str,
    *lanes: scheduler_pb2.WorkerLane,
    pool: str = "default",
    machine: str = "",
    drain: float = 0.0,
    window: float = 0.0,
) -> scheduler_pb2.ReportRequest:
    return scheduler_pb2.ReportRequest(
        worker=worker,
        machine=machine or worker,
        pool=pool,
        device=scheduler_pb2.Device(window_ms=window),
        lanes=lanes,
        drain_ms_per_second=drain,
    )
