"""A sidecar for tests of the worker: keeps units, answers batches at once or when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc

from shoal.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc
from shoal.work.v1 import work_pb2
from shoal_common import grpc_server


class FakeSidecar(sidecar_pb2_grpc.SidecarServiceServicer):
    """Serves on a Unix socket; its result for an item is `answer(item)`."""

    def __init__(self, socket: Path) -> None:
        self.address = f"unix:{socket}"
        self.answer: Callable[[bytes], bytes] = lambda item: b"result of " + item
        self.refuse: Callable[[work_pb2.Unit], bytes] = lambda unit: b""
        """A serialized google.rpc.Status for a unit that is not taken."""
        self.streams = asyncio.Semaphore(2)
        self.work_s: Callable[[list[work_pb2.Unit]], float] = lambda units: 0.0
        """How long a batch takes."""
        self.gate = asyncio.Event()
        """Batches are answered while it is set."""
        self.gate.set()
        self.loads_models = True
        """Whether a model that is asked for becomes ready."""
        self.units: dict[str, work_pb2.Unit] = {}
        self.admits: list[list[str]] = []
        self.batches: list[list[str]] = []
        self.released: list[str] = []
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.hellos: list[sidecar_pb2.Hello] = []
        self.welcome_ids: list[str] = []
        self.refuse_batches = 0
        """So many batches are refused since the model is not ready."""
        self._server: grpc.aio.Server | None = None

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

    async def Attach(self, request_iterator, context) -> AsyncIterator[sidecar_pb2.AttachResponse]:
        responses: asyncio.Queue[sidecar_pb2.AttachResponse] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(request_iterator, responses, group))
            with contextlib.suppress(asyncio.CancelledError):
                while not reader.done():
                    yield await responses.get()
            reader.cancel()

    async def _read(self, requests, responses: asyncio.Queue, group: asyncio.TaskGroup) -> None:
        worker = ""
        async for request in requests:
            match request.WhichOneof("message"):
                case "hello":
                    worker = request.hello.worker
                    self.hellos.append(request.hello)
                    welcome = sidecar_pb2.Welcome(instance="fake", unit_ids=self.welcome_ids)
                    responses.put_nowait(sidecar_pb2.AttachResponse(welcome=welcome))
                case "load_model":
                    digest = request.load_model.profile_digest
                    self.loads.append(digest)
                    status = sidecar_pb2.ModelStatus(
                        profile_digest=digest,
                        state=sidecar_pb2.MODEL_STATE_READY if self.loads_models else sidecar_pb2.MODEL_STATE_LOADING,
                        memory_bytes=1_000,
                    )
                    responses.put_nowait(sidecar_pb2.AttachResponse(model_status=status))
                case "unload_model":
                    self.unloads.append(request.unload_model.profile_digest)
                case "admit":
                    responses.put_nowait(self._admit(request.admit, worker))
                case "run_batch":
                    group.create_task(self._run(request.run_batch, responses))
                case "release":
                    self.released.extend(request.release.unit_ids)

    def _admit(self, admit: sidecar_pb2.Admit, worker: str) -> sidecar_pb2.AttachResponse:
        admitted = sidecar_pb2.Admitted()
        units = [work_pb2.Unit.FromString(unit.unit) for unit in admit.units]
        self.admits.append([unit.id for unit in units])
        for unit in units:
            error = self.refuse(unit)
            if not error:
                self.units[unit.id] = unit
            admitted.units.add(
                unit_id=unit.id,
                owner=worker,
                items=len(unit.items),
                tokens=unit.estimated_tokens,
                squared_tokens=unit.estimated_tokens**2 // len(unit.items),
                error=error,
            )
        return sidecar_pb2.AttachResponse(admitted=admitted)

    async def _run(self, batch: sidecar_pb2.RunBatch, responses: asyncio.Queue) -> None:
        if self.refuse_batches:
            self.refuse_batches -= 1
            refused = sidecar_pb2.BatchRefused(batch_id=batch.batch_id, model_not_ready=True)
            responses.put_nowait(sidecar_pb2.AttachResponse(batch_refused=refused))
            return
        if unknown := [unit_id for unit_id in batch.unit_ids if unit_id not in self.units]:
            refused = sidecar_pb2.BatchRefused(batch_id=batch.batch_id, not_owned=unknown)
            responses.put_nowait(sidecar_pb2.AttachResponse(batch_refused=refused))
            return
        self.batches.append(list(batch.unit_ids))
        async with self.streams:
            started_ns = time.time_ns()
            await self.gate.wait()
            await asyncio.sleep(self.work_s([self.units[unit_id] for unit_id in batch.unit_ids]))
        done = sidecar_pb2.BatchDone(
            batch_id=batch.batch_id,
            compute_ms=(time.time_ns() - started_ns) / 1e6,
            started_unix_ns=started_ns,
            runtime="sim",
        )
        for unit_id in batch.unit_ids:
            unit = self.units.pop(unit_id)
            done.units.add(unit_id=unit_id, results=[self.answer(item) for item in unit.items], attempt=1)
        if batch.trace:
            now_ns = time.time_ns()
            done.spans.add(name="forward", start_unix_ns=started_ns, end_unix_ns=now_ns)
        responses.put_nowait(sidecar_pb2.AttachResponse(batch_done=done))
