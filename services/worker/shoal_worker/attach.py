"""The worker's stream to its sidecar: connects, writes in order, and connects again."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator
from typing import Protocol

import grpc

from shoal.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc
from shoal_common import grpc_server, limits, logs

log = logs.get("attach")
RECONNECT_S = 0.1
WELCOME_S = 5.0
BUNDLE_BYTES = 64 * limits.KIB
"""Of messages that are one write: larger ones gain nothing."""


class Listener(Protocol):
    """Who hears the sidecar. No method waits."""

    def attached(self) -> None:
        """The stream stands; units that the sidecar still holds for this worker follow as Granted."""
        ...

    def detached(self) -> None:
        """The stream is gone, with everything that was said on it."""
        ...

    def heard(self, response: sidecar_pb2.AttachResponse) -> None:
        """A message came."""
        ...


class Attach:
    """One stream at a time. What is sent while none stands is dropped."""

    def __init__(self, address: str, hello: sidecar_pb2.Hello, listener: Listener) -> None:
        self._address = address
        self._hello = hello
        self._listener = listener
        self._requests: list[sidecar_pb2.AttachRequest] = []
        self._written: dict[int, asyncio.Future[None]] = {}
        """By the identity of the request."""
        self._filled = asyncio.Event()
        self.is_up = False

    def send(self, request: sidecar_pb2.AttachRequest) -> None:
        """Sends a message soon: the stream has one writer."""
        if self.is_up:
            self._requests.append(request)
            self._filled.set()

    async def deliver(self, request: sidecar_pb2.AttachRequest) -> None:
        """Sends a message that is large; returns when it was written, or the stream is gone."""
        if self.is_up:
            written = self._written[id(request)] = asyncio.get_running_loop().create_future()
            self.send(request)
            await written

    async def run(self) -> None:
        """Stays attached for ever."""
        while True:
            try:
                async with grpc_server.channel(self._address) as channel:
                    await self._attach(sidecar_pb2_grpc.SidecarServiceStub(channel))
                log.warning("the sidecar closed the stream")
            except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
                log.debug("sidecar is away", error=repr(error))
            await asyncio.sleep(RECONNECT_S)

    async def _attach(self, stub: sidecar_pb2_grpc.SidecarServiceStub) -> None:
        call = stub.Attach()
        async with asyncio.timeout(WELCOME_S):
            await call.write(sidecar_pb2.AttachRequest(hello=self._hello))
            first = await call.read()
        if not isinstance(first, sidecar_pb2.AttachResponse):
            return
        self._requests.clear()
        self.is_up = True
        log.info("attached to the sidecar", instance=first.welcome.instance)
        writer = asyncio.create_task(self._write(call))
        try:
            self._listener.attached()
            while isinstance(response := await call.read(), sidecar_pb2.AttachResponse):
                self._listener.heard(response)
        finally:
            self.is_up = False
            if not _is_ending():
                self._listener.detached()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            for written in self._written.values():
                if not written.done():
                    written.set_result(None)
            self._written.clear()

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            requests, self._requests = self._requests, []
            for first, more in _bundles(requests, self._written):
                first.more.extend(more)
                await call.write(first)
                written = self._written.pop(id(first), None)
                if written is not None and not written.done():
                    written.set_result(None)


def _bundles(
    requests: Iterable[sidecar_pb2.AttachRequest], apart: Container[int]
) -> Iterator[tuple[sidecar_pb2.AttachRequest, list[sidecar_pb2.AttachRequest]]]:
    """Requests as they are written, each with those that go with it: a write takes longer than what small ones say.

    Those whose identities are in `apart` go alone.
    """
    first, more, size = None, [], 0
    for request in requests:
        request_bytes = BUNDLE_BYTES if id(request) in apart else request.ByteSize()
        if first is not None and size + request_bytes <= BUNDLE_BYTES:
            more.append(request)
            size += request_bytes
            continue
        if first is not None:
            yield first, more
        first, more, size = request, [], request_bytes
    if first is not None:
        yield first, more


def _is_ending() -> bool:
    """Whether the worker ends: then nobody is to act on what is lost."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
