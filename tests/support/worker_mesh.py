"""Workers of a test against a real broker and fake sidecars, and a gateway that publishes to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

from nats.aio.msg import Msg
from opentelemetry.trace import NoOpTracer, Tracer

from shoal.work.v1 import work_pb2
from shoal_common import lanes, queue_setup
from shoal_common.nats_session import Session, connected_session
from shoal_common.process import Stop
from shoal_common.profile import parse_profile
from shoal_common.registry_view import RegisteredModel, RegistryView
from shoal_worker.settings import WorkerSettings
from shoal_worker.worker import Worker
from tests.support.fake_sidecar import FakeSidecar
from tests.support.nats import NatsServer

CATALOGUE = Path(__file__).parents[2] / "services/registry/shoal_registry/catalogue/minilm.yaml"


def registered(profile_text: str | None = None) -> RegisteredModel:
    """minilm, or another profile, as the registry would hold it."""
    profile = parse_profile(profile_text or CATALOGUE.read_text())
    digest = profile.digest()
    lane = lanes.Lane(profile.pool, digest)
    return RegisteredModel(profile.name, digest, profile, profile.canonical_json(), lane)


class Gateway:
    """Publishes units and takes their results as a gateway does."""

    def __init__(self, session: Session, model: RegisteredModel) -> None:
        self.session = session
        self.model = model
        self.subject = f"{lanes.RESULT_SUBJECT}.test"
        self.confirms = True
        self.parts: dict[str, list[work_pb2.UnitResult]] = {}
        self.message_bytes: list[int] = []
        self._ids = itertools.count()

    async def start(self) -> None:
        """Takes results from now on."""
        await self.session.subscribe(self.subject, self._on_result)

    async def publish(self, **fields) -> str:
        """Publishes a unit of one item, or of what `fields` say."""
        headers = fields.pop("headers", None)
        unit = work_pb2.Unit(
            id=f"unit-{next(self._ids)}",
            request_id="request-1",
            reply_subject=self.subject,
            remaining_ms=30_000,
            work_class=work_pb2.WORK_CLASS_INTERACTIVE,
            task=work_pb2.TASK_ENCODE,
            profile_digest=self.model.digest,
            estimated_tokens=20,
            items=[b"an item"],
        )
        unit.MergeFrom(work_pb2.Unit(**{key: value for key, value in fields.items() if key != "items"}))
        if "items" in fields:
            unit.items[:] = fields["items"]
        await self.publish_raw(unit.SerializeToString(), unit.id, lanes.CLASSES[unit.work_class], headers)
        return unit.id

    async def publish_raw(
        self, payload: bytes, msg_id: str, work_class: str = "interactive", headers: dict[str, str] | None = None
    ) -> None:
        """Publishes a message, whatever it holds."""
        await self.session.publish(
            lanes.work_subject(self.model.lane.token, work_class),
            payload,
            msg_id=msg_id,
            timeout_s=20,
            headers=headers,
        )

    async def cancel(self, *unit_ids: str) -> None:
        """Says that nobody waits for units."""
        cancelled = work_pb2.CancelledUnits(unit_ids=unit_ids, remember_ms=30_000)
        await self.session.send(lanes.cancel_subject(self.model.lane.shard), cancelled.SerializeToString())

    def has(self, *unit_ids: str) -> bool:
        """Whether the last part of each unit's result came."""
        return all(any(part.last for part in self.parts.get(unit_id, [])) for unit_id in unit_ids)

    async def queued(self) -> int:
        """Messages in the lane's stream, acknowledged ones excluded."""
        info = await self.session.api(f"STREAM.INFO.{lanes.stream_name(self.model.lane.shard)}")
        return info["state"]["messages"]

    async def is_empty(self) -> bool:
        """Whether every unit was acknowledged."""
        return await self.queued() == 0

    async def redelivered(self, work_class: str = "interactive") -> int:
        """Messages of the lane that were delivered more than once and are not acknowledged."""
        consumer = lanes.consumer_name(self.model.lane.token, work_class)
        info = await self.session.api(f"CONSUMER.INFO.{lanes.stream_name(self.model.lane.shard)}.{consumer}")
        return info["num_redelivered"]

    async def _on_result(self, msg: Msg) -> None:
        self.message_bytes.append(len(msg.data))
        for result in work_pb2.ResultBatch.FromString(msg.data).results:
            self.parts.setdefault(result.unit_id, []).append(result)
        if self.confirms:
            await self.session.send(msg.reply)


class WorkerHere:
    """A worker that runs in the test's loop."""

    def __init__(self, worker: Worker, session: Session, view: RegistryView) -> None:
        self.worker = worker
        self.session = session
        self.view = view
        self.stop = Stop()
        self._task = asyncio.create_task(worker.run(self.stop))

    async def end(self) -> None:
        """Stops it in order."""
        self.stop.now()
        async with asyncio.timeout(10):
            await self._task

    async def kill(self) -> None:
        """Ends it where it stands; what it would still have said is not said."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        """Whether it was ended."""
        return self._task.done()


class Mesh:
    """A worker and what stands around it; the test may start further ones."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server = server
        self.model = registered()
        self.sidecar = FakeSidecar(folder / "sidecar.sock")
        self.tracer: Tracer = NoOpTracer()
        self.settings = WorkerSettings(
            listen=f"unix:{folder}/worker.sock",
            nats_url=server.url,
            nats_token=server.token,
            registry=f"unix:{folder}/no-registry.sock",
            sidecar=self.sidecar.address,
            streams=2,
        )
        self.gateway: Gateway
        self.first: WorkerHere
        self._folder = folder
        self._ends = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def running(self, *, works: bool = True) -> AsyncIterator[Mesh]:
        """All of it, until the block ends; the first worker only where it `works`."""
        async with self._ends, connected_session(self.settings, "gateway", Stop()) as gateway_session:
            await queue_setup.ensure_streams(gateway_session)
            await queue_setup.ensure_consumers(gateway_session, self.model.lane.token)
            self.gateway = Gateway(gateway_session, self.model)
            await self.gateway.start()
            await self.sidecar.start()
            self._ends.push_async_callback(self.sidecar.die)
            if works:
                await self.start()
            try:
                yield self
            finally:
                await self._ends.aclose()

    async def start(self) -> None:
        """Starts the first worker."""
        self.first = await self.start_worker(self.settings.worker)

    async def start_worker(self, name: str, sidecar: FakeSidecar | None = None) -> WorkerHere:
        """A worker of that name on this machine, or on the machine of another sidecar."""
        update = {"worker": name, **({"sidecar": sidecar.address} if sidecar else {})}
        settings = self.settings.model_copy(update=update)
        session = await self._ends.enter_async_context(connected_session(settings, name, Stop()))
        view = RegistryView(session, settings.registry, watcher=name)
        view.models = {self.model.name: self.model}
        view.ready.set()
        here = WorkerHere(Worker(settings, session, view, self.tracer), session, view)
        self._ends.push_async_callback(_end, here)
        return here

    async def another_sidecar(self) -> FakeSidecar:
        """A second machine's."""
        sidecar = FakeSidecar(self._folder / "other.sock")
        await sidecar.start()
        self._ends.push_async_callback(sidecar.die)
        return sidecar

    @property
    def worker(self) -> Worker:
        """The first worker."""
        return self.first.worker

    @property
    def session(self) -> Session:
        """The first worker's connection."""
        return self.first.session

    def registry_changes(self, *models: RegisteredModel) -> None:
        """The registry holds these and no others."""
        self.first.view.models = {model.name: model for model in models}
        self.worker._on_registry()


async def _end(here: WorkerHere) -> None:
    if not here.is_over:
        await here.end()
