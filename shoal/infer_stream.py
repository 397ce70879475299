"""Asks many requests over one Infer stream, and opens another when it breaks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from shoal import statuses
from shoal.errors import CallError, Unavailable
from shoal.v1 import inference_pb2


class InferStream:
    """A context for the requests of one call; leaving it ends the stream, and the mesh drops the rest.

    `open_call` starts an Infer call to `target`. It is called on the first request, and again on the
    first one after a break.
    """

    def __init__(self, open_call: Callable[[], Any], target: str) -> None:
        self._open_call = open_call
        self._target = target
        self._connection: _Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def encode(self, request: inference_pb2.EncodeRequest, timeout_s: float) -> inference_pb2.EncodeResponse:
        """The answer to one request; any number may be asked at once.

        Raises the CallError that the mesh answered it with or that broke the stream, and TimeoutError.
        """
        if self._connection is None or self._connection.broken:
            self._connection = _Connection(self._open_call(), self._target)
        return await self._connection.encode(request, timeout_s)


class _Connection:
    """One Infer call: a lock around its writes, a task that reads."""

    def __init__(self, call: Any, target: str) -> None:
        self.broken = False
        self._call = call
        self._target = target
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[inference_pb2.EncodeResponse]] = {}
        self._writing = asyncio.Lock()  # two writes at once end the call
        self._reader = asyncio.create_task(self._read())

    async def encode(self, request: inference_pb2.EncodeRequest, timeout_s: float) -> inference_pb2.EncodeResponse:
        request_id = str(next(self._numbers))
        answer = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        message = inference_pb2.InferRequest(
            request_id=request_id, deadline_ms=max(1, int(timeout_s * 1000)), encode=request
        )
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    async with self._writing:
                        await self._call.write(message)
                except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                    pass  # the call has ended: its reader knows why, and tells `answer`
                return await answer
        finally:
            self._pending.pop(request_id, None)
            answer.cancel()

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait({self._reader})

    async def _read(self) -> None:
        error: CallError = Unavailable("the mesh closed the stream before it had answered", code="UNAVAILABLE")
        try:
            async for response in self._call:
                self._settle(response)
        except grpc.aio.AioRpcError as failure:
            error = statuses.from_rpc_error(failure, self._target)
        finally:
            self.broken = True
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(error)

    def _settle(self, response: inference_pb2.InferResponse) -> None:
        answer = self._pending.get(response.request_id)
        if answer is None or answer.done():  # its asker has given up
            return
        if response.WhichOneof("response") == "error":
            answer.set_exception(statuses.from_status(response.error))
        else:
            answer.set_result(response.encode)
