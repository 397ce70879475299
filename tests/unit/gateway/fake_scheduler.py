"""A scheduler that says what the test tells it to say of lanes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """WatchLanes, for one watcher after another, and GetFleet."""

    def __init__(self) -> None:
        self.workers: list[scheduler_pb2.ReportRequest] = []
        self._lanes: dict[str, scheduler_pb2.LaneState] = {}
        self._events: asyncio.Queue[scheduler_pb2.WatchLanesResponse] = asyncio.Queue()

    def say(self, state: scheduler_pb2.LaneState) -> None:
        """A lane's new state."""
        self._lanes[state.lane] = state
        self._events.put_nowait(scheduler_pb2.WatchLanesResponse(lanes=[state]))

    def count(self, watchers: int) -> None:
        """So many gateways watch now."""
        self._events.put_nowait(scheduler_pb2.WatchLanesResponse(watchers=watchers))

    async def WatchLanes(
        self, request: scheduler_pb2.WatchLanesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[scheduler_pb2.WatchLanesResponse]:
        self._events = asyncio.Queue()
        yield scheduler_pb2.WatchLanesResponse(snapshot=True, lanes=self._lanes.values())
        while True:
            yield await self._events.get()

    async def GetFleet(
        self, request: scheduler_pb2.GetFleetRequest, context: grpc.aio.ServicerContext
    ) -> scheduler_pb2.GetFleetResponse:
        return scheduler_pb2.GetFleetResponse(workers=self.workers)
