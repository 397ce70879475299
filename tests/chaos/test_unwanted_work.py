"""Work that nobody waits for any more is dropped unrun: cancelled and expired while the worker stood still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from nats.aio.msg import Msg

from shoal.v1 import inference_pb2 as pb
from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits, registry_state
from shoal_common.nats_session import Session
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support.broker import session_of
from tests.support.raw import RawClient
from tests.support.until import until
from tests.unit.common.fake_collector import FakeCollector

UNITS = 5
REQUEST = pb.EncodeRequest(model="minilm", items=[pb.Item(text="nobody waits for this")])


@pytest.fixture(scope="module")
def collector() -> Iterator[FakeCollector]:
    with FakeCollector() as running:
        yield running


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory, collector: FakeCollector) -> Iterator[EmbeddedMesh]:
    folder: Path = tmp_path_factory.mktemp("unwanted")
    with EmbeddedMesh(folder, models=["minilm"], env=collector.env) as running:
        running.wait_for_model("minilm")
        yield running


async def queued(session: Session) -> int:
    """Units in all work streams."""
    infos = [await session.api(f"STREAM.INFO.{lanes.stream_name(shard)}") for shard in range(limits.SHARDS)]
    return sum(info["state"]["messages"] for info in infos)


async def waiting_pulls(session: Session) -> int:
    """Pulls that the broker would answer with the next unit."""
    pulls = 0
    for shard in range(limits.SHARDS):
        listed: dict[str, Any] = await session.api(f"CONSUMER.LIST.{lanes.stream_name(shard)}")
        pulls += sum(consumer["num_waiting"] for consumer in listed["consumers"] or [])
    return pulls


class Stage(NamedTuple):
    """A mesh whose worker stands still, and ways to look at it."""

    mesh: EmbeddedMesh
    collector: FakeCollector
    session: Session

    def units(self, outcome: str) -> float:
        """Units that the worker has let go with an outcome."""
        return self.collector.sums.get(("shoal.worker.units", outcome), 0)

    async def serve_one(self, client: RawClient) -> None:
        """Has one request answered and counted."""
        done = self.units("done")
        assert len(client.encode(REQUEST).results) == 1
        await until(lambda: self.units("done") == done + 1, message="the worker counts what it did")

    @contextlib.asynccontextmanager
    async def dropped(self, outcome: str) -> AsyncIterator[None]:
        """The worker stands still for the block; then it must drop so many units, and run none."""
        dropped, done = self.units(outcome), self.units("done")
        worker = self.mesh.pid("worker-0")
        os.kill(worker, signal.SIGSTOP)
        try:
            await until(lambda: equals(waiting_pulls(self.session), 0), message="the worker's pulls expire")
            yield
        finally:
            os.kill(worker, signal.SIGCONT)
        await until(lambda: equals(queued(self.session), 0), message="the queue is empty")
        await until(lambda: self.units(outcome) == dropped + UNITS, message=f"all are counted as {outcome}")
        assert self.units("done") == done, "none of them was run"


@pytest.fixture
async def stage(mesh: EmbeddedMesh, collector: FakeCollector) -> AsyncIterator[Stage]:
    async with session_of(mesh) as session:
        yield Stage(mesh, collector, session)


@pytest.fixture
def client(mesh: EmbeddedMesh) -> Iterator[RawClient]:
    with grpc.insecure_channel(mesh.address) as channel:
        yield RawClient(channel)


async def test_cancelled_work_is_dropped_unrun(stage: Stage, client: RawClient) -> None:
    told: list[str] = []

    async def on_cancel(msg: Msg) -> None:
        told.extend(work_pb2.CancelledUnits.FromString(msg.data).unit_ids)

    await stage.session.subscribe(f"{lanes.CANCEL_SUBJECT}.*", on_cancel)
    await stage.serve_one(client)
    async with stage.dropped("cancelled"):
        calls = [client.encode_bytes.future(REQUEST.SerializeToString(), timeout=60) for _ in range(UNITS)]
        await until(lambda: equals(queued(stage.session), UNITS), message="all are queued")
        for call in calls:
            call.cancel()
        await until(lambda: len(told) == UNITS, message="all are cancelled")
    await stage.serve_one(client)


async def test_expired_work_is_dropped_unrun(stage: Stage, client: RawClient) -> None:
    """Units of a gateway that is gone, since one that lives cancels what has expired."""
    (model,) = registry_state.decode(await registry_state.bucket(stage.session).read()).models
    subject = lanes.work_subject(model.lane.token, "interactive")
    await stage.serve_one(client)
    async with stage.dropped("expired"):
        for n in range(UNITS):
            unit = work_pb2.Unit(
                id=f"expired-{n}",
                reply_subject="shoal.result.nobody",
                remaining_ms=1,
                work_class=work_pb2.WORK_CLASS_INTERACTIVE,
                task=work_pb2.TASK_ENCODE,
                profile_digest=model.profile_digest,
                items=[item.SerializeToString() for item in REQUEST.items],
            )
            await stage.session.publish(subject, unit.SerializeToString(), msg_id=unit.id, timeout_s=5)
    await stage.serve_one(client)


async def equals(count: Awaitable[int], wanted: int) -> bool:
    return await count == wanted
