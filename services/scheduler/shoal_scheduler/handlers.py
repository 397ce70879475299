"""SchedulerService: translates between the wire and the desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from grpc.aio import ServicerContext

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import errors, logs
from shoal_scheduler.desk import Desk, closed
from shoal_scheduler.seat import Seat

log = logs.get("scheduler")


class SchedulerHandlers(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers while this replica holds the lease; `streams` owns the tasks that read reports."""

    def __init__(self, desk: Desk, streams: asyncio.TaskGroup) -> None:
        self._desk = desk
        self._streams = streams

    async def Report(
        self, request_iterator: AsyncIterator[scheduler_pb2.ReportRequest], context: ServicerContext
    ) -> AsyncIterator[scheduler_pb2.ReportResponse]:
        self._desk.check_open()
        with self._desk.seated() as seat:
            reading = self._streams.create_task(_read(request_iterator, seat))
            try:
                async for plan in seat.plans():
                    yield scheduler_pb2.ReportResponse(
                        plan_revision=plan.revision, profile_digests=plan.digests, idle_lanes=plan.idle_lanes
                    )
            finally:
                reading.cancel()

    async def WatchLanes(
        self, request: scheduler_pb2.WatchLanesRequest, context: ServicerContext
    ) -> AsyncIterator[scheduler_pb2.WatchLanesResponse]:
        await self._desk.settled()
        board = self._desk.board
        with board.joined() as watcher:
            log.debug("lanes are watched", watcher=request.watcher)
            yield scheduler_pb2.WatchLanesResponse(snapshot=True, lanes=board.states.values(), watchers=board.watchers)
            while change := await watcher.next():
                lanes, removed = change
                yield scheduler_pb2.WatchLanesResponse(lanes=lanes, removed=removed, watchers=board.watchers)
            raise closed()

    async def GetFleet(
        self, request: scheduler_pb2.GetFleetRequest, context: ServicerContext
    ) -> scheduler_pb2.GetFleetResponse:
        self._desk.check_open()
        fleet = self._desk.fleet
        return scheduler_pb2.GetFleetResponse(workers=fleet.reports(), lanes=fleet.lane_states().values())


async def _read(reports: AsyncIterator[scheduler_pb2.ReportRequest], seat: Seat) -> None:
    """Gives a stream's reports to its seat, until either ends."""
    try:
        async for report in reports:
            seat.take(report)
    except errors.CallError as error:
        seat.end(error)
    except Exception as error:  # One broken stream must not end the task group that owns them all.
        log.error("a worker's stream broke", exc_info=error)
        seat.end(errors.internal())
    finally:
        seat.end()
