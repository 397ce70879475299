"""What the scheduler says of each lane; nothing waits for it, and old words count as none."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import grpc_server, logs

log = logs.get("lane-states")
FRESH_S = 5.0
RETRY_S = 0.25


@dataclass(frozen=True)
class KnownLane:
    """A lane's state and when it was said (time.monotonic)."""

    state: scheduler_pb2.LaneState
    heard_s: float


class LaneStates:
    """Lane states by token; `follow` keeps them fresh.

    The scheduler sends what changes, so a state holds for as long as the stream stands and FRESH_S longer.
    """

    def __init__(self, address: str, watcher: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._watcher = watcher
        self._lanes: dict[str, KnownLane] = {}
        self._clock_s = clock_s
        self._lost_s: float | None = -math.inf
        self.watchers = 1
        """Gateways that watch, this one included."""
        self._hooks: list[Callable[[Iterable[str]], None]] = []

    def on_change(self, hook: Callable[[Iterable[str]], None]) -> None:
        """Calls `hook` with the tokens of lanes whose state changed, came, went or became too old."""
        self._hooks.append(hook)

    @property
    def known(self) -> bool:
        """Whether the scheduler was heard of late, so that a lane without a state has no worker."""
        return self._lost_s is None or self._clock_s() - self._lost_s <= FRESH_S

    def get(self, token: str) -> KnownLane | None:
        """A lane's state; None when there is none or it is too old."""
        return self._lanes.get(token) if self.known else None

    async def follow(self) -> None:
        """Watches the scheduler for ever."""
        while True:
            try:
                async with grpc_server.channel(self._address) as channel:
                    await self._watch(scheduler_pb2_grpc.SchedulerServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                log.debug("scheduler is away", error=error.details())
            if self._lost_s is None:
                self._lost_s = self._clock_s()
                asyncio.get_running_loop().call_later(FRESH_S + RETRY_S, self._aged)
            await asyncio.sleep(RETRY_S)

    async def _watch(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        async for event in stub.WatchLanes(scheduler_pb2.WatchLanesRequest(watcher=self._watcher)):
            self._apply(event)

    def _apply(self, event: scheduler_pb2.WatchLanesResponse) -> None:
        now_s = self._clock_s()
        changed = {state.lane: KnownLane(state, now_s) for state in event.lanes}
        gone = set(self._lanes) - set(changed) if event.snapshot else set(event.removed)
        self._lost_s = None
        self._lanes.update(changed)
        for token in gone:
            self._lanes.pop(token, None)
        if event.watchers not in (0, self.watchers):
            self.watchers = event.watchers
            self._tell({*self._lanes, *gone})
        else:
            self._tell([*changed, *gone])

    def _aged(self) -> None:
        if not self.known:
            self._tell(list(self._lanes))

    def _tell(self, tokens: Iterable[str]) -> None:
        for hook in self._hooks:
            hook(tokens)
