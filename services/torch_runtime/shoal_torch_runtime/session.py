"""One Run stream: from the sidecar's messages to calls of the engine and back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from shoal.runtime.v1 import runtime_pb2
from shoal_common import limits
from shoal_torch_runtime.engine import Computed, Engine, LoadedModel
from shoal_torch_runtime.errors import BatchError, LoadError

IN_FLIGHT = 256
"""Requests taken before one is answered; the stream is not read on above it."""

T = TypeVar("T")
_Answer = runtime_pb2.RunResponse | None
_log = logging.getLogger(__name__)


class Session:
    """Hands each request to the engine as it comes, and has one writer: two writes at once break a grpc.aio stream.

    Answers are made on the engine's threads: to the loop is left only to write them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[_Answer | BaseException] = asyncio.Queue()
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def run(
        self,
        requests: AsyncIterator[runtime_pb2.RunRequest],
        write: Callable[[runtime_pb2.RunResponse], Awaitable[None]],
    ) -> None:
        """Serves until the requests end."""
        await write(runtime_pb2.RunResponse(ready=runtime_pb2.Ready(pid=os.getpid(), device=self._engine.device)))
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(write))
            async for request in requests:
                await self._room.acquire()
                self._start(request)
            writer.cancel()

    async def _write(self, write: Callable[[runtime_pb2.RunResponse], Awaitable[None]]) -> None:
        while True:
            answer = await self._answers.get()
            self._room.release()
            if isinstance(answer, BaseException):
                raise answer  # It is nobody's fault but ours, and ends the runtime.
            if answer is not None:
                await write(answer)

    def _start(self, request: runtime_pb2.RunRequest) -> None:
        match request.WhichOneof("message"):
            case "load":
                load = request.load
                future = self._engine.load(load.profile_digest, load.profile_json, load.folder)
                self._answer_with(partial(_loaded, load.profile_digest), future)
            case "unload":
                self._answer_with(_unloaded, self._engine.unload(request.unload.profile_digest))
            case "batch":
                batch = request.batch
                future = self._engine.compute(batch.profile_digest, batch.token_ids, batch.lengths)
                self._answer_with(partial(_computed, batch.batch_id), future)
            case _:
                _log.warning("a request that this runtime does not know was left out")
                self._room.release()

    def _answer_with(self, answer: Callable[[Future[T]], _Answer], future: Future[T]) -> None:
        def done(future: Future[T]) -> None:
            try:
                made = answer(future)
            except BaseException as error:
                made = error
            with contextlib.suppress(RuntimeError):  # The loop is closed: the stream is over.
                self._loop.call_soon_threadsafe(self._answers.put_nowait, made)

        future.add_done_callback(done)


def _loaded(digest: str, future: Future[LoadedModel]) -> runtime_pb2.RunResponse:
    try:
        model = future.result()
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


def _unloaded(future: Future[None]) -> None:
    future.result()


def _computed(batch_id: int, future: Future[Computed]) -> runtime_pb2.RunResponse:
    try:
        computed = future.result()
    except BatchError as error:
        result = runtime_pb2.BatchResult(batch_id=batch_id, error=_cut(error))
        return runtime_pb2.RunResponse(batch_result=result)
    result = runtime_pb2.BatchResult(
        batch_id=batch_id,
        rows=computed.rows,
        dimensions=computed.dimensions,
        started_unix_ns=computed.started_unix_ns,
        ended_unix_ns=computed.ended_unix_ns,
    )
    return runtime_pb2.RunResponse(batch_result=result)


def _cut(error: Exception) -> str:
    return str(error).encode()[: limits.ERROR_TEXT_BYTES].decode(errors="ignore")
