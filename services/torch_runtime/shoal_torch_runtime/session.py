"""One Run stream: from the sidecar's messages to calls of the engine and back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from shoal.runtime.v1 import runtime_pb2
from shoal_common import limits
from shoal_torch_runtime.engine import Engine
from shoal_torch_runtime.errors import BatchError, LoadError

IN_FLIGHT = 256
"""Requests taken before one is answered; the stream is not read on above it."""

_Answer = runtime_pb2.RunResponse | None
_log = logging.getLogger(__name__)


class Session:
    """Answers each request in a task of its own, and has one writer: two writes at once break a grpc.aio stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers: asyncio.Queue[runtime_pb2.RunResponse] = asyncio.Queue()
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def run(
        self,
        requests: AsyncIterator[runtime_pb2.RunRequest],
        write: Callable[[runtime_pb2.RunResponse], Awaitable[None]],
    ) -> None:
        """Serves until the requests end."""
        ready = runtime_pb2.Ready(pid=os.getpid(), device=self._engine.device)
        self._answers.put_nowait(runtime_pb2.RunResponse(ready=ready))
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(write))
            async for request in requests:
                await self._room.acquire()
                tasks.create_task(self._answer(request))
            writer.cancel()

    async def _write(self, write: Callable[[runtime_pb2.RunResponse], Awaitable[None]]) -> None:
        while True:
            await write(await self._answers.get())

    async def _answer(self, request: runtime_pb2.RunRequest) -> None:
        answer = await self._handle(request)
        if answer is not None:
            self._answers.put_nowait(answer)
        self._room.release()

    async def _handle(self, request: runtime_pb2.RunRequest) -> _Answer:
        match request.WhichOneof("message"):
            case "load":
                return await self._load(request.load)
            case "unload":
                await asyncio.wrap_future(self._engine.unload(request.unload.profile_digest))
            case "batch":
                return await self._batch(request.batch)
            case _:
                _log.warning("a request that this runtime does not know was left out")
        return None

    async def _load(self, load: runtime_pb2.Load) -> runtime_pb2.RunResponse:
        digest = load.profile_digest
        try:
            model = await asyncio.wrap_future(self._engine.load(digest, load.profile_json, load.folder))
        except LoadError as error:
            failed = runtime_pb2.LoadFailed(profile_digest=digest, error=_cut(error))
            return runtime_pb2.RunResponse(load_failed=failed)
        loaded = runtime_pb2.Loaded(
            profile_digest=digest,
            memory_bytes=model.memory_bytes,
            element_type=model.element_type,
            load_ms=model.load_ms,
        )
        return runtime_pb2.RunResponse(loaded=loaded)

    async def _batch(self, batch: runtime_pb2.Batch) -> runtime_pb2.RunResponse:
        future = self._engine.compute(batch.profile_digest, batch.token_ids, batch.lengths)
        try:
            computed = await asyncio.wrap_future(future)
        except BatchError as error:
            result = runtime_pb2.BatchResult(batch_id=batch.batch_id, error=_cut(error))
            return runtime_pb2.RunResponse(batch_result=result)
        result = runtime_pb2.BatchResult(
            batch_id=batch.batch_id,
            rows=computed.rows,
            dimensions=computed.dimensions,
            started_unix_ns=computed.started_unix_ns,
            ended_unix_ns=computed.ended_unix_ns,
        )
        return runtime_pb2.RunResponse(batch_result=result)


def _cut(error: Exception) -> str:
    return str(error).encode()[: limits.ERROR_TEXT_BYTES].decode(errors="ignore")
