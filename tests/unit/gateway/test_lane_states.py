"""Lane states outlive their scheduler for a while, and a new one's snapshot replaces them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import grpc_server
from shoal_gateway.lane_states import FRESH_S, LaneStates
from tests.support.until import until
from tests.unit.gateway.fake_scheduler import FakeScheduler

READY = scheduler_pb2.RESIDENCY_READY


@asynccontextmanager
async def running(scheduler: FakeScheduler, address: str) -> AsyncIterator[None]:
    def add(server) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)

    async with grpc_server.serving(address, ["shoal.scheduler.v1.SchedulerService"], add, drain_s=0):
        yield


async def test_states_come_change_age_and_are_replaced(tmp_path: Path) -> None:
    now_s = 100.0
    address = f"unix:{tmp_path}/scheduler.sock"
    lane_states = LaneStates(address, "test", lambda: now_s)
    changed: list[str] = []
    lane_states.on_change(changed.extend)
    assert not lane_states.known and lane_states.get("a") is None
    following = asyncio.create_task(lane_states.follow())
    first = FakeScheduler()
    first.say(scheduler_pb2.LaneState(lane="a", residency=READY))
    async with running(first, address):
        await until(lambda: lane_states.get("a"))
        assert lane_states.known and lane_states.get("b") is None
        first.say(scheduler_pb2.LaneState(lane="b", residency=READY, wait_ms=5))
        known = await until(lambda: lane_states.get("b"))
        assert (known.state.wait_ms, known.heard_s) == (5, 100.0)
        assert changed == ["a", "b"]
        first.count(3)
        await until(lambda: lane_states.watchers == 3)
        assert sorted(changed[2:]) == ["a", "b"], "each gateway's part of every lane is another now"
        now_s += 10 * FRESH_S
        assert lane_states.get("a"), "what doesn't change is not said again"
    await until(lambda: lane_states._lost_s is not None)
    now_s += FRESH_S
    assert lane_states.get("a")
    now_s += 0.1
    assert lane_states.get("a") is None and not lane_states.known

    second = FakeScheduler()
    second.say(scheduler_pb2.LaneState(lane="b", residency=READY))
    async with running(second, address):
        await until(lambda: lane_states.get("b"))
        assert lane_states.get("a") is None
        assert sorted(changed[4:]) == ["a", "b"]
    following.cancel()
