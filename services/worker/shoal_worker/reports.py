"""The worker's stream to the scheduler: its state out, its plan and word of idle machines in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import grpc_server, logs

log = logs.get("reports")
PERIOD_S = 1.0
RECONNECT_S = 0.25


class Reports:
    """Reports at once, each second, and when told that something changed."""

    def __init__(
        self,
        address: str,
        report: Callable[[], scheduler_pb2.ReportRequest],
        planned: Callable[[frozenset[str]], None],
        idle: Callable[[frozenset[str]], None],
    ) -> None:
        self._address = address
        self._report = report
        self._planned = planned
        self._idle = idle
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """A model's residency changed."""
        self._changed.set()

    async def run(self) -> None:
        """Reports for ever, whether there is a scheduler or not."""
        while True:
            try:
                async with grpc_server.channel(self._address) as channel:
                    stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                    async for response in stub.Report(self._reports()):
                        self._planned(frozenset(response.profile_digests))
                        self._idle(frozenset(response.idle_lanes))
            except grpc.aio.AioRpcError as error:
                log.debug("scheduler is away", error=error.details())
            self._idle(frozenset())
            await asyncio.sleep(RECONNECT_S)

    async def _reports(self) -> AsyncIterator[scheduler_pb2.ReportRequest]:
        while True:
            self._changed.clear()
            yield self._report()
            try:
                async with asyncio.timeout(PERIOD_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
