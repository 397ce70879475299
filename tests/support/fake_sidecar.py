"""A sidecar for tests of workers: keeps units, answers batches at once or when the test says so, moves units
between workers when the test does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from shoal.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc
from shoal.v1 import inference_pb2
from shoal.work.v1 import work_pb2
from shoal_common import grpc_server


class FakeSidecar(sidecar_pb2_grpc.SidecarServiceServicer):
    """Serves on a Unix socket; its result for an item is `answer(item)`."""

    def __init__(self, socket: Path) -> None:
        self.address = f"unix:{socket}"
        self.answer: Callable[[bytes], bytes] = lambda item: b"result of " + item
        self.refuse: Callable[[work_pb2.Unit], bytes] = lambda unit: b""
        """A serialized google.rpc.Status for a unit that is not taken."""
        self.count: Callable[[work_pb2.Unit], int] = lambda unit: unit.estimated_tokens
        """How many tokens a unit really has."""
        self.streams: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(2))
        """Of each worker's device."""
        self.work_s: Callable[[list[work_pb2.Unit]], float] = lambda units: 0.0
        """How long a batch takes."""
        self.gate = asyncio.Event()
        """Batches are answered while it is set, and the gate of their worker is."""
        self.gate.set()
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(_open)
        self.ahead_ns = 0
        """How far the clock of its machine is ahead."""
        self.loads_models = True
        """Whether a model that is asked for becomes ready."""
        self.units: dict[str, work_pb2.Unit] = {}
        self.owners: dict[str, str] = {}
        """The worker of each unit."""
        self.workers: dict[str, asyncio.Queue[sidecar_pb2.AttachResponse]] = {}
        """What is said to each attached worker."""
        self.states: defaultdict[str, list[sidecar_pb2.State]] = defaultdict(list)
        self.offers: defaultdict[str, list[list[str]]] = defaultdict(list)
        self.returns: list[list[str]] = []
        self.admits: list[list[str]] = []
        self.batches: list[list[str]] = []
        self.released: list[str] = []
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.hellos: list[sidecar_pb2.Hello] = []
        self.refuse_batches = 0
        """So many batches are refused since the model is not ready."""
        self._server: grpc.aio.Server | None = None
        self.admitted: dict[str, sidecar_pb2.AdmitUnit] = {}
        """Every unit as it was admitted last."""
        self._grants: Counter[str] = Counter()

    async def start(self) -> None:
        """Listens."""
        Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)
        self._server = grpc.aio.server(options=grpc_server.SERVER_OPTIONS)
        sidecar_pb2_grpc.add_SidecarServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def die(self) -> None:
        """Ends every stream and forgets every unit."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.units.clear()
        self.owners.clear()

    def grant(self, to: str, *unit_ids: str, **overrides) -> None:
        """Gives units to a worker; whoever had them is told, if it is there. `overrides` are fields of the grants."""
        takings: defaultdict[str, list[str]] = defaultdict(list)
        self._grants[to] += 1
        granted = sidecar_pb2.Granted(number=self._grants[to])
        for unit_id in unit_ids:
            owner, self.owners[unit_id] = self.owners[unit_id], to
            if owner != to:
                takings[owner].append(unit_id)
            granted.units.append(self._granted(unit_id, owner))
            granted.units[-1].MergeFrom(sidecar_pb2.GrantedUnit(**overrides))
        for owner, taken in takings.items():
            self._say(owner, taken=sidecar_pb2.Taken(unit_ids=taken, by=to))
        self._say(to, granted=granted)

    def ready(self, worker: str, profile_digest: str) -> None:
        """A model is ready on a worker's device."""
        self._say(worker, model_status=_ready(profile_digest))

    def disown(self, worker: str, *unit_ids: str) -> None:
        """Says that units are not a worker's, as after an offer that crossed a grant."""
        self._say(worker, not_owned=sidecar_pb2.NotOwned(unit_ids=unit_ids))

    def _granted(self, unit_id: str, owner: str) -> sidecar_pb2.GrantedUnit:
        unit, admitted = self.units[unit_id], self.admitted[unit_id]
        header = work_pb2.Unit()
        header.CopyFrom(unit)
        header.ClearField("items")
        return sidecar_pb2.GrantedUnit(
            header=header.SerializeToString(),
            ack_subject=admitted.ack_subject,
            deliveries=admitted.deliveries,
            traceparent=admitted.traceparent,
            items=len(unit.items),
            tokens=self.count(unit),
            squared_tokens=self.count(unit) ** 2 // len(unit.items),
            **{"from": owner},
        )

    def _say(self, worker: str, **message) -> None:
        if worker in self.workers:
            self.workers[worker].put_nowait(sidecar_pb2.AttachResponse(**message))

    def _tell_siblings(self) -> None:
        for worker in self.workers:
            self._say(worker, siblings=sidecar_pb2.Siblings(workers=len(self.workers) - 1))

    async def Attach(self, request_iterator, context) -> AsyncIterator[sidecar_pb2.AttachResponse]:
        responses: asyncio.Queue[sidecar_pb2.AttachResponse] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            running: set[asyncio.Task[None]] = set()
            reader = group.create_task(self._read(request_iterator, responses, group, running))
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    while not reader.done():
                        yield await responses.get()
            finally:
                for task in (reader, *running):
                    task.cancel()
                gone = [worker for worker, queue in self.workers.items() if queue is responses]
                for worker in gone:
                    del self.workers[worker]
                    self._tell_siblings()

    async def _read(
        self, requests, responses: asyncio.Queue, group: asyncio.TaskGroup, running: set[asyncio.Task[None]]
    ) -> None:
        worker = ""
        async for request in _each(requests):
            match request.WhichOneof("message"):
                case "hello":
                    worker = request.hello.worker
                    self.hellos.append(request.hello)
                    self.workers[worker] = responses
                    self._grants[worker] = 0
                    self._say(worker, welcome=sidecar_pb2.Welcome(instance="fake"))
                    if former := [unit_id for unit_id, owner in self.owners.items() if owner == worker]:
                        self.grant(worker, *former)
                    if len(self.workers) > 1:
                        self._tell_siblings()
                case "load_model":
                    digest = request.load_model.profile_digest
                    self.loads.append(digest)
                    status = _ready(digest)
                    if not self.loads_models:
                        status.state = sidecar_pb2.MODEL_STATE_LOADING
                    responses.put_nowait(sidecar_pb2.AttachResponse(model_status=status))
                case "unload_model":
                    self.unloads.append(request.unload_model.profile_digest)
                case "admit":
                    responses.put_nowait(self._admit(request.admit, worker))
                case "run_batch":
                    task = group.create_task(self._run(request.run_batch, worker, responses))
                    running.add(task)
                    task.add_done_callback(running.discard)
                case "release":
                    self.released.extend(request.release.unit_ids)
                    for unit_id in request.release.unit_ids:
                        self._forget(unit_id, worker)
                case "state":
                    self.states[worker].append(request.state)
                case "offer":
                    self.offers[worker].append([unit.unit_id for unit in request.offer.units])
                case "return_units":
                    responses.put_nowait(self._return(request.return_units, worker))

    def _forget(self, unit_id: str, worker: str) -> work_pb2.Unit | None:
        """Forgets a worker's unit; None when it has none of that id."""
        if self.owners.get(unit_id) != worker:
            return None
        del self.owners[unit_id]
        return self.units.pop(unit_id)

    def _return(self, request: sidecar_pb2.ReturnUnits, worker: str) -> sidecar_pb2.AttachResponse:
        self.returns.append(list(request.unit_ids))
        returned = sidecar_pb2.Returned()
        for unit_id in request.unit_ids:
            if self._forget(unit_id, worker) is not None:
                admitted = self.admitted[unit_id]
                returned.units.add(
                    unit=admitted.unit, ack_subject=admitted.ack_subject, traceparent=admitted.traceparent
                )
        return sidecar_pb2.AttachResponse(returned=returned)

    def _admit(self, admit: sidecar_pb2.Admit, worker: str) -> sidecar_pb2.AttachResponse:
        admitted = sidecar_pb2.Admitted()
        units = [work_pb2.Unit.FromString(one.unit) for one in admit.units]
        self.admits.append([unit.id for unit in units])
        for unit, as_pulled in zip(units, admit.units, strict=True):
            for item in as_pulled.fetched:
                (blob,) = [blob for blob in unit.blobs if blob.index == item.index]
                unit.items[item.index] = _content(item, blob)
            error = self.refuse(unit)
            if not error:
                self.units[unit.id] = unit
                self.admitted[unit.id] = as_pulled
                if self.owners.get(unit.id) not in self.workers:
                    self.owners[unit.id] = worker
            admitted.units.add(
                unit_id=unit.id,
                owner=self.owners.get(unit.id, worker),
                items=len(unit.items),
                tokens=self.count(unit),
                squared_tokens=self.count(unit) ** 2 // len(unit.items),
                error=error,
            )
        return sidecar_pb2.AttachResponse(admitted=admitted)

    async def _run(self, batch: sidecar_pb2.RunBatch, worker: str, responses: asyncio.Queue) -> None:
        if self.refuse_batches:
            self.refuse_batches -= 1
            refused = sidecar_pb2.BatchRefused(batch_id=batch.batch_id, model_not_ready=True)
            responses.put_nowait(sidecar_pb2.AttachResponse(batch_refused=refused))
            return
        if unknown := [unit_id for unit_id in batch.unit_ids if self.owners.get(unit_id) != worker]:
            refused = sidecar_pb2.BatchRefused(batch_id=batch.batch_id, not_owned=unknown)
            responses.put_nowait(sidecar_pb2.AttachResponse(batch_refused=refused))
            return
        self.batches.append(list(batch.unit_ids))
        async with self.streams[worker]:
            started_ns = time.time_ns()
            await self.gate.wait()
            await self.gates[worker].wait()
            await asyncio.sleep(self.work_s([self.units[unit_id] for unit_id in batch.unit_ids]))
        done = sidecar_pb2.BatchDone(
            batch_id=batch.batch_id,
            compute_ms=(time.time_ns() - started_ns) / 1e6,
            started_unix_ns=started_ns + self.ahead_ns,
            runtime="sim",
        )
        for unit_id in batch.unit_ids:
            unit = self._forget(unit_id, worker)
            if unit is None:
                continue  # Its owner let it go meanwhile.
            done.units.add(unit_id=unit_id, results=[self.answer(item) for item in unit.items], attempt=1)
        if batch.trace:
            now_ns = time.time_ns()
            done.spans.add(name="forward", start_unix_ns=started_ns, end_unix_ns=now_ns)
        responses.put_nowait(sidecar_pb2.AttachResponse(batch_done=done))


async def _each(requests: AsyncIterator[sidecar_pb2.AttachRequest]) -> AsyncIterator[sidecar_pb2.AttachRequest]:
    """Requests and those that came with them."""
    async for request in requests:
        yield request
        for more in request.more:
            yield more


def _content(item: sidecar_pb2.FetchedItem, blob: work_pb2.Blob) -> bytes:
    """An item that its worker fetched, or why there is none."""
    match item.WhichOneof("content"):
        case "item":
            return item.item
        case "path":
            data = Path(item.path).read_bytes()
            return data if hashlib.sha256(data).digest() == blob.sha256 else b"no item: BLOB_DAMAGED"
    return b"no item: " + inference_pb2.ItemStatus.FromString(item.fault).reason.encode()


def _open() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


def _ready(profile_digest: str) -> sidecar_pb2.ModelStatus:
    return sidecar_pb2.ModelStatus(
        profile_digest=profile_digest, state=sidecar_pb2.MODEL_STATE_READY, memory_bytes=1_000
    )
