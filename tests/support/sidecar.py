"""A sidecar process for tests, and a worker's stream to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil

from shoal.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc
from shoal.work.v1 import work_pb2
from shoal_common.profile import Profile
from shoal_supervisor.sidecar_build import sidecar_binary
from tests.support import reference

HEARD_S = 60.0
"""A message that takes longer does not come: a warm parent takes 13 s to import torch."""


class Sidecar:
    """One sidecar process; its stderr is kept in `log`."""

    def __init__(
        self, folder: Path, *flags: str, python: str = sys.executable, faults: dict[str, str] | None = None
    ) -> None:
        self.socket = folder / "sidecar.sock"
        self.log = folder / "sidecar.log"
        command = [str(sidecar_binary(print)), "--socket", str(self.socket), "--runtime-dir", str(folder / "rt")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--python", python, *flags],
                stdin=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(faults or {})},
            )

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(
            f"unix:{self.socket}",
            options=[("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", -1)],
        )

    def logged(self, message: str) -> list[dict]:
        """Log lines with this message."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("message") == message]

    def warm_parent(self) -> psutil.Process:
        (parent,) = psutil.Process(self.process.pid).children()
        return parent

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(10)


@contextlib.contextmanager
def running_sidecar(
    *flags: str, python: str = sys.executable, faults: dict[str, str] | None = None
) -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="shoal") as folder:
        sidecar = Sidecar(Path(folder), *flags, python=python, faults=faults)
        try:
            yield sidecar
        finally:
            sidecar.process.kill()
            sidecar.process.wait()


class Worker:
    """A worker's stream. Messages are kept by kind, in order of arrival."""

    def __init__(self, channel: grpc.aio.Channel, name: str) -> None:
        self.name = name
        self._call = sidecar_pb2_grpc.SidecarServiceStub(channel).Attach(wait_for_ready=True)
        self._heard: dict[str, asyncio.Queue] = {}
        self._reader = asyncio.create_task(self._read())
        self.states: list[sidecar_pb2.ModelStatus] = []

    async def _read(self) -> None:
        while isinstance(response := await self._call.read(), sidecar_pb2.AttachResponse):
            kind = response.WhichOneof("message")
            assert kind is not None
            message = getattr(response, kind)
            if kind == "model_status":
                self.states.append(message)
            if kind == "admitted":
                for unit in message.units:
                    self._queue("unit").put_nowait(unit)
            self._queue(kind).put_nowait(message)

    def _queue(self, kind: str) -> asyncio.Queue:
        return self._heard.setdefault(kind, asyncio.Queue())

    def has_heard(self, kind: str) -> bool:
        """Whether a message of this kind waits to be taken."""
        return not self._queue(kind).empty()

    async def next(self, kind: str, timeout_s: float = HEARD_S):
        async with asyncio.timeout(timeout_s):
            return await self._queue(kind).get()

    async def send(self, **message) -> None:
        await self._call.write(sidecar_pb2.AttachRequest(**message))

    async def hello(self, streams: int = 1, device: str = "cpu") -> sidecar_pb2.Welcome:
        hello = sidecar_pb2.Hello(worker=self.name, device=device, streams=streams, threads=1)
        await self.send(hello=hello)
        return await self.next("welcome")

    async def load(self, profile: Profile, folder: Path | None = None) -> sidecar_pb2.ModelStatus:
        """Asks for a model and waits until it is ready or failed."""
        load = sidecar_pb2.LoadModel(
            profile_digest=profile.digest(),
            profile_json=profile.canonical_json(),
            folder=str(folder or reference.minilm_folder()),
        )
        await self.send(load_model=load)
        while True:
            status = await self.next("model_status")
            if status.profile_digest == load.profile_digest and status.state != sidecar_pb2.MODEL_STATE_LOADING:
                return status

    async def admit(
        self, *units: work_pb2.Unit, deliveries: int = 1, traceparent: str = ""
    ) -> list[sidecar_pb2.AdmittedUnit]:
        """Admits units, to be acknowledged at `ack.<id>`, and waits until they are tokenized."""
        admit = sidecar_pb2.Admit(
            units=[
                sidecar_pb2.AdmitUnit(
                    unit=u.SerializeToString(),
                    ack_subject=f"ack.{u.id}",
                    deliveries=deliveries,
                    traceparent=traceparent,
                )
                for u in units
            ]
        )
        await self.send(admit=admit)
        return [await self.next("unit") for _ in units]

    async def run(self, *unit_ids: str, batch_id: int = 1, trace: bool = False) -> None:
        await self.send(run_batch=sidecar_pb2.RunBatch(batch_id=batch_id, unit_ids=unit_ids, trace=trace))

    async def close(self) -> None:
        self._call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await self._reader
