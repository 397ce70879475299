"""The scheduler's word on every worker, asked for when a person wants to see it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import grpc_server, logs

log = logs.get("fleet")
TIMEOUT_S = 1.0


async def workers(scheduler: str) -> Sequence[scheduler_pb2.ReportRequest] | None:
    """The last report of every connected worker; None when the scheduler at this address does not answer."""
    if not scheduler:
        return None
    try:
        async with grpc_server.channel(scheduler) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            fleet = await stub.GetFleet(scheduler_pb2.GetFleetRequest(), timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        log.debug("scheduler is away", error=error.details())
        return None
    return fleet.workers
