"""Two workers on one sidecar, with real weights: units move to whoever can start them, and every value is right."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import grpc
import numpy as np
import pytest

from shoal.v1 import inference_pb2 as pb
from shoal_common import lanes, registry_state
from shoal_common.nats_session import Session
from shoal_supervisor import usage
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import reference, texts
from tests.support.broker import session_of
from tests.support.load import TOLERANCE, CheckedLoad
from tests.support.raw import RawClient
from tests.support.until import until
from tests.unit.common.fake_collector import FakeCollector

CALLS = 80
TEXTS = texts.mixed(seed=7, count=CALLS, most_tokens=60)
PAUSE_S = 1.0
STOP_S = 4.0
"""Longer than the sidecar waits for a sign of life."""


class PutBacks(FakeCollector):
    """Counts put-backs over all processes."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int], int] = {}
        """The newest count by kind, and by the moment at which its process began to count."""

    def __enter__(self) -> PutBacks:
        super().__enter__()
        return self

    def Export(self, request, context: grpc.ServicerContext):
        for resource in getattr(request, "resource_metrics", ()):
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                if metric.name == "shoal.worker.put_backs":
                    for point in metric.sum.data_points:
                        kind = point.attributes[0].value.string_value
                        self._counts[kind, point.start_time_unix_nano] = point.as_int
        return super().Export(request, context)

    def total(self, kind: str) -> int:
        """Of one kind."""
        return sum(count for (counted, _), count in self._counts.items() if counted == kind)


@pytest.fixture(scope="module")
def collector() -> Iterator[PutBacks]:
    with PutBacks() as running:
        yield running


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, collector: PutBacks) -> Iterator[EmbeddedMesh]:
    with EmbeddedMesh(tmp_path_factory.mktemp("two"), workers=2, env=collector.env) as running:
        running.wait_for_model("minilm")
        yield running


class Stage(NamedTuple):
    """The mesh, and ways to look at it."""

    mesh: EmbeddedMesh
    put_backs: PutBacks
    session: Session
    client: RawClient
    token: str

    async def consumer(self) -> tuple[int, int]:
        """Deliveries so far, and units delivered that are not acked."""
        stream, name = lanes.stream_name(lanes.shard_of(self.token)), lanes.consumer_name(self.token, "interactive")
        info = await self.session.api(f"CONSUMER.INFO.{stream}.{name}")
        return info["delivered"]["consumer_seq"], info["num_ack_pending"]

    async def is_swamped(self) -> bool:
        """Whether the workers have much in hand, and take no more."""
        _, before = await self.consumer()
        await asyncio.sleep(0.2)  # What does not change needs a time in which it does not.
        return (await self.consumer())[1] == before > 3

    def call(self) -> list[grpc.Future]:
        """A call a text."""
        requests = [pb.EncodeRequest(model="minilm", items=[pb.Item(text=text)]) for text in TEXTS]
        return [self.client.encode_bytes.future(request.SerializeToString(), timeout=60) for request in requests]

    def runtimes(self) -> list[int]:
        """Pids of the processes that compute."""
        found = usage.runtimes(self.mesh.mesh_status().process("sidecar").pid)
        return [runtime.pid for runtime in found if runtime.name != "torch-parent"]


@pytest.fixture
async def stage(mesh: EmbeddedMesh, collector: PutBacks) -> AsyncIterator[Stage]:
    mesh.wait_whole()
    async with session_of(mesh) as session:
        (model,) = registry_state.decode(await registry_state.bucket(session).read()).models
        with grpc.insecure_channel(mesh.address) as channel:
            yield Stage(mesh, collector, session, RawClient(channel), model.lane.token)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes stand still for the block."""
    with ExitStack() as ends:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            ends.callback(os.kill, pid, signal.SIGCONT)
        yield


async def answers(calls: list[grpc.Future]) -> set[str]:
    """Checks every value; the workers that answered."""
    await until(lambda: all(call.done() for call in calls), 60, "not all calls ended")
    responses: list[pb.EncodeResponse] = [call.result() for call in calls]
    for response, wanted in zip(responses, reference.encode(TEXTS), strict=True):
        [result] = response.results
        assert not result.status.code
        assert np.abs(np.frombuffer(result.dense.data, "<f4") - wanted).max() <= TOLERANCE
    return {run.worker for response in responses for run in response.provenance.runs}


async def test_both_workers_serve_one_lane(stage: Stage) -> None:
    assert await answers(stage.call()) == {"worker-0", "worker-1"}


async def test_what_waits_behind_a_slow_device_moves_to_the_other(stage: Stage) -> None:
    """Its batches take as long as they like: their predictions say otherwise, and it has pulled for them."""
    slow, _ = stage.runtimes()
    before = stage.put_backs.total("from_sibling")
    with CheckedLoad(stage.mesh.address, timeout_s=30) as load:
        load.wait_for_answers(5)

        async def moved() -> bool:
            with stopped(slow):
                calls = stage.call()
                load.run_for(PAUSE_S)
            await answers(calls)
            return stage.put_backs.total("from_sibling") > before

        await until(moved, 60, "nothing was put back")
    assert load.wrong == []
    assert load.failed == []


async def test_units_of_a_killed_worker_do_not_wait_to_be_delivered_again(stage: Stage) -> None:
    deliveries, _ = await stage.consumer()
    with stopped(*stage.runtimes()):
        calls = stage.call()
        await until(stage.is_swamped)
        os.kill(stage.mesh.pid("worker-0"), signal.SIGKILL)
    assert "worker-1" in await answers(calls)
    assert (await stage.consumer())[0] - deliveries == CALLS, "some were delivered again"


async def test_units_of_a_worker_that_stands_still_are_answered_by_the_other(stage: Stage) -> None:
    before = stage.put_backs.total("to_sibling")
    worker = stage.mesh.pid("worker-0")
    with CheckedLoad(stage.mesh.address, timeout_s=30) as load:
        load.wait_for_answers(5)
        with stopped(*stage.runtimes()):
            calls = stage.call()
            await until(stage.is_swamped)
            os.kill(worker, signal.SIGSTOP)
        load.run_for(STOP_S)
        os.kill(worker, signal.SIGCONT)
        await answers(calls)
        await until(lambda: stage.put_backs.total("to_sibling") > before, message="the stopped worker has lost none")
    assert load.wrong == []
    assert load.failed == []
