"""The scheduler as processes on a real broker and registry: plans, lane states, and a second that takes over."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml

from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal_common import grpc_server
from shoal_common.lease import TTL_S
from shoal_registry.catalogue import PACKAGED
from tests.support.nats import NatsServer
from tests.support.ports import free_port
from tests.support.refusal import refused
from tests.support.service import Service
from tests.support.until import until

MINILM = yaml.safe_load((PACKAGED / "minilm.yaml").read_text())
ABSENT, READY = scheduler_pb2.RESIDENCY_ABSENT, scheduler_pb2.RESIDENCY_READY
Start = Callable[[str], Service]
Reports = AsyncIterator[scheduler_pb2.ReportRequest]


class Worker:
    """A worker's stream: reports as the test says, plans as they come."""

    def __init__(
        self, stub: scheduler_pb2_grpc.SchedulerServiceStub, name: str, pool: str = "default", machine: str = ""
    ) -> None:
        self._name, self._pool, self._machine = name, pool, machine
        self._reports: asyncio.Queue[scheduler_pb2.ReportRequest | None] = asyncio.Queue()
        self.call = stub.Report(self._sent(), timeout=120)
        self.plans = aiter(self.call)

    def report(self, *lanes: scheduler_pb2.WorkerLane, **fields: object) -> None:
        self._reports.put_nowait(
            scheduler_pb2.ReportRequest(
                worker=self._name,
                machine=self._machine,
                pool=self._pool,
                lanes=lanes,
                **fields,  # pyright: ignore[reportArgumentType]
            )
        )

    def end(self) -> None:
        self._reports.put_nowait(None)

    async def plan(self) -> scheduler_pb2.ReportResponse:
        async with asyncio.timeout(10):
            return await anext(self.plans)

    async def _sent(self) -> Reports:
        while (report := await self._reports.get()) is not None:
            yield report


class Board:
    """What a gateway knows of lanes."""

    def __init__(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        self._call = stub.WatchLanes(scheduler_pb2.WatchLanesRequest(watcher="test"), timeout=120)
        self.lanes: dict[str, scheduler_pb2.LaneState] = {}
        self.messages: list[scheduler_pb2.WatchLanesResponse] = []

    async def follow(self) -> None:
        async for message in self._call:
            self.messages.append(message)
            self.lanes |= {lane.lane: lane for lane in message.lanes}
            for token in message.removed:
                del self.lanes[token]

    def state(self, token: str) -> scheduler_pb2.LaneState:
        return self.lanes.get(token, scheduler_pb2.LaneState())


@contextlib.asynccontextmanager
async def watched(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> AsyncIterator[Board]:
    board = Board(stub)
    task = asyncio.create_task(board.follow())
    try:
        await until(lambda: board.messages, 10, "no snapshot of lanes")
        yield board
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await task


@pytest.fixture
def broker(nats_server: NatsServer) -> dict[str, Any]:
    return {"nats_url": nats_server.url, "nats_token": nats_server.token}


@pytest.fixture
def registry_service(broker: dict[str, Any], tmp_path: Path) -> Iterator[Service]:
    service = Service("shoal_registry", tmp_path, **broker)
    service.start()
    yield service
    service.kill()


@pytest.fixture
def start(registry_service: Service, broker: dict[str, Any], tmp_path: Path) -> Iterator[Start]:
    """Starts a scheduler by name."""
    services: list[Service] = []

    def start(name: str) -> Service:
        service = Service("shoal_scheduler", tmp_path, name, replica=name, registry=registry_service.address, **broker)
        services.append(service)
        service.start()
        return service

    yield start
    for service in services:
        service.kill()


@pytest.fixture
def service(start: Start) -> Service:
    return start("scheduler-0")


@pytest.fixture
async def scheduler(service: Service) -> AsyncIterator[scheduler_pb2_grpc.SchedulerServiceStub]:
    await service.serving()
    async with grpc_server.channel(service.address) as channel:
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel)


@pytest.fixture
async def registry(registry_service: Service) -> AsyncIterator[registry_pb2_grpc.RegistryServiceStub]:
    async with grpc_server.channel(registry_service.address) as channel:
        yield registry_pb2_grpc.RegistryServiceStub(channel)


async def minilm(registry: registry_pb2_grpc.RegistryServiceStub) -> registry_pb2.Model:
    async def get() -> registry_pb2.Model | None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return (await registry.GetModel(registry_pb2.GetModelRequest(name="minilm"), timeout=2)).model
        return None

    return await until(get, 15, "minilm was not registered")


async def test_a_worker_is_told_its_pools_models_and_every_change(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, registry: registry_pb2_grpc.RegistryServiceStub
):
    model = await minilm(registry)
    worker, stranger = Worker(scheduler, "w0"), Worker(scheduler, "w1", pool="gpu")
    worker.report()
    stranger.report()
    plan = await worker.plan()
    if not plan.profile_digests:  # Asked before the registration had come here.
        plan = await worker.plan()
    assert list(plan.profile_digests) == [model.profile_digest]
    assert not (await stranger.plan()).profile_digests
    profile = yaml.safe_dump({**MINILM, "name": "another"})
    another = (await registry.RegisterModel(registry_pb2.RegisterModelRequest(profile=profile))).model
    second = await worker.plan()
    assert second.plan_revision == plan.plan_revision + 1
    assert list(second.profile_digests) == [another.profile_digest, model.profile_digest]
    worker.end()
    stranger.end()


async def test_a_worker_is_told_when_another_machine_is_idle_and_when_not(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, registry: registry_pb2_grpc.RegistryServiceStub
):
    token = (await minilm(registry)).lane.token
    busy = Worker(scheduler, "w0", machine="m0")
    busy.report(scheduler_pb2.WorkerLane(lane=token, residency=READY, backlog_ms=40))
    plan = await busy.plan()
    if not plan.profile_digests:  # Asked before the registration had come here.
        plan = await busy.plan()
    assert not plan.idle_lanes
    far = Worker(scheduler, "w1", machine="m1")
    far.report(scheduler_pb2.WorkerLane(lane=token, residency=READY))
    second = await busy.plan()
    assert list(second.idle_lanes) == [token]
    assert second.plan_revision == plan.plan_revision + 1
    assert second.profile_digests == plan.profile_digests
    far.report(scheduler_pb2.WorkerLane(lane=token, residency=READY, backlog_ms=3))
    assert not (await busy.plan()).idle_lanes
    far.report(scheduler_pb2.WorkerLane(lane=token, residency=READY))
    assert list((await busy.plan()).idle_lanes) == [token]
    far.end()
    assert not (await busy.plan()).idle_lanes
    busy.end()


async def test_gateways_are_told_how_many_watch(scheduler: scheduler_pb2_grpc.SchedulerServiceStub):
    async with watched(scheduler) as first:
        assert first.messages[-1].watchers == 1
        async with watched(scheduler) as second:
            assert second.messages[0].watchers == 2
            await until(lambda: first.messages[-1].watchers == 2, 2, "the second watcher is not told of")
        await until(lambda: first.messages[-1].watchers == 1, 2, "the second watcher's end is not told of")


async def test_a_lanes_window_and_a_tokens_cost_are_shown(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, registry: registry_pb2_grpc.RegistryServiceStub
):
    token = (await minilm(registry)).lane.token
    async with watched(scheduler) as board:
        workers = [Worker(scheduler, f"w{n}") for n in range(2)]
        for worker, ms_per_token in zip(workers, (0.1, 0.2), strict=True):
            lane = scheduler_pb2.WorkerLane(lane=token, residency=READY, ms_per_token=ms_per_token)
            worker.report(lane, device=scheduler_pb2.Device(window_ms=240))
        await until(lambda: board.state(token).window_ms == 480, 5, "both windows are not shown")
        assert board.state(token).ms_per_token == pytest.approx(0.15)
        for worker in workers:
            worker.end()


async def test_lane_states_follow_the_workers(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, registry: registry_pb2_grpc.RegistryServiceStub
):
    model = await minilm(registry)
    token = model.lane.token
    async with watched(scheduler) as board:
        assert board.messages[0].snapshot
        await until(lambda: board.state(token).residency == ABSENT, 5, "the registered lane is not shown")
        worker = Worker(scheduler, "w0")
        lane = scheduler_pb2.WorkerLane(lane=token, profile_digest=model.profile_digest, residency=READY, backlog_ms=40)
        worker.report(lane, drain_ms_per_second=800.0)
        await until(lambda: board.state(token).residency == READY, 5, "the worker is not shown")
        assert (board.state(token).workers, board.state(token).wait_ms) == (1, 50)
        fleet = await scheduler.GetFleet(scheduler_pb2.GetFleetRequest(), timeout=5)
        assert [each.worker for each in fleet.workers] == ["w0"]
        assert [(each.lane, each.workers) for each in fleet.lanes] == [(token, 1)]
        worker.end()
        await until(lambda: board.state(token).residency == ABSENT, 2, "the worker's end is not shown")


async def test_changes_are_coalesced(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, registry: registry_pb2_grpc.RegistryServiceStub
):
    token = (await minilm(registry)).lane.token
    async with watched(scheduler) as board:
        worker = Worker(scheduler, "w0")
        for n in range(500):
            worker.report(scheduler_pb2.WorkerLane(lane=token, residency=READY, backlog_ms=10.0 * n))
        await until(lambda: board.state(token).queued_ms == 4990, 10, "the last report is not shown")
        assert len(board.messages) < 100
        worker.end()


async def test_a_silent_worker_is_dropped(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, registry: registry_pb2_grpc.RegistryServiceStub
):
    token = (await minilm(registry)).lane.token
    async with watched(scheduler) as board:
        worker = Worker(scheduler, "w0")
        lane = scheduler_pb2.WorkerLane(lane=token, residency=READY)
        worker.report(lane)
        await until(lambda: board.state(token).workers == 1, 5, "the worker is not shown")
        await until(lambda: board.state(token).workers == 0, 8, "the silent worker is still shown")
        worker.report(lane)
        await until(lambda: board.state(token).workers == 1, 5, "the worker is not shown again")
        worker.end()


async def test_a_bad_report_ends_its_stream_and_no_other(scheduler: scheduler_pb2_grpc.SchedulerServiceStub):
    good, bad, moved = Worker(scheduler, "good"), Worker(scheduler, ""), Worker(scheduler, "one")
    good.report()
    await good.plan()
    bad.report(busy_share=float("nan"))
    await refused(anext(bad.plans), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "worker", "busy_share")
    moved.report()
    await moved.plan()
    moved._name = "two"
    moved.report()
    with pytest.raises(grpc.aio.AioRpcError, match="was 'one' on this stream"):
        while True:
            await moved.plan()
    fleet = await scheduler.GetFleet(scheduler_pb2.GetFleetRequest(), timeout=5)
    assert [each.worker for each in fleet.workers] == ["good"]
    good.end()


async def test_a_cancelled_stream_is_a_worker_gone(scheduler: scheduler_pb2_grpc.SchedulerServiceStub):
    worker = Worker(scheduler, "w0")
    worker.report()
    await worker.plan()
    worker.call.cancel()

    async def alone() -> bool:
        return not (await scheduler.GetFleet(scheduler_pb2.GetFleetRequest(), timeout=5)).workers

    await until(alone, 2, "the cancelled worker is still there")


async def test_a_standby_refuses_until_the_holder_is_killed(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub, service: Service, start: Start
):
    second = start("scheduler-1")
    async with grpc_server.channel(second.address) as channel:
        standby = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        unavailable = grpc.StatusCode.UNAVAILABLE
        watch = scheduler_pb2.WatchLanesRequest()
        await refused(anext(aiter(standby.WatchLanes(watch, wait_for_ready=True))), unavailable, "NOT_LEADER")
        worker = Worker(standby, "w0")
        worker.report()
        await refused(worker.plan(), unavailable, "NOT_LEADER")
        assert not await second.is_serving()
        service.kill()
        await second.serving(TTL_S + 5)
        worker = Worker(standby, "w0")
        worker.report()
        assert (await worker.plan()).plan_revision == 1
        worker.end()


async def test_it_ends_in_order_with_open_streams(scheduler: scheduler_pb2_grpc.SchedulerServiceStub, service: Service):
    worker = Worker(scheduler, "w0")
    worker.report()
    await worker.plan()
    async with watched(scheduler):
        assert await asyncio.to_thread(service.stop) == 0


async def test_it_outlives_broker_and_registry(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub,
    registry: registry_pb2_grpc.RegistryServiceStub,
    registry_service: Service,
    nats_server: NatsServer,
):
    token = (await minilm(registry)).lane.token
    async with watched(scheduler) as board:
        await until(lambda: token in board.lanes, 5, "the registered lane is not shown")
        registry_service.kill()
        nats_server.restart()
        worker = Worker(scheduler, "w0")
        worker.report(scheduler_pb2.WorkerLane(lane=token, residency=READY))
        await until(lambda: board.state(token).workers == 1, 5, "the worker is not shown")
        worker.end()


async def test_it_is_idle_when_nothing_changes(
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub,
    service: Service,
    registry: registry_pb2_grpc.RegistryServiceStub,
):
    await minilm(registry)
    process = psutil.Process(service.pid)
    before = process.cpu_times()
    await asyncio.sleep(3)  # A share of time needs a time.
    after = process.cpu_times()
    assert (after.user + after.system - before.user - before.system) / 3 < 0.03


async def test_without_a_broker_it_ends_as_soon_as_it_is_told_to(tmp_path: Path):
    broker = f"nats://127.0.0.1:{free_port()}"
    service = Service("shoal_scheduler", tmp_path, replica="s", registry=f"unix:{tmp_path}/none.sock", nats_url=broker)
    service.start()
    await until(lambda: catches_sigterm(service.pid), 15, "it does not run")
    told_s = time.monotonic()
    assert await asyncio.to_thread(service.stop) == 0
    assert time.monotonic() - told_s < 1.0


def catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
