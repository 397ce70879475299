"""An Infer stream whose caller goes away ends with all its requests, and says nothing to the log."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from shoal.v1 import inference_pb2 as pb
from shoal_gateway.auth import Auth
from shoal_gateway.dispatch import Caller, Dispatch
from shoal_gateway.infer_stream import InferStream
from shoal_gateway.room import Room


class FakeContext:
    """A caller that sends some requests, then waits; its connection is gone when an answer is written."""

    def __init__(self, *requests: pb.InferRequest) -> None:
        self._requests = [request.SerializeToString() for request in requests]

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def read(self) -> bytes:
        if self._requests:
            return self._requests.pop(0)
        return await asyncio.Future()

    async def write(self, _: bytes) -> None:
        raise grpc.aio.InternalError("the connection is gone")


class FakeDispatch:
    """Answers "quick" at once and the others never."""

    def __init__(self) -> None:
        self.room = Room(1000)
        self.cancelled: list[str] = []
        self.waiting = asyncio.Event()

    async def encode(self, raw: bytes, _: Caller) -> bytes:
        model = pb.EncodeRequest.FromString(raw).model
        if model == "quick":
            await self.waiting.wait()
            return b""
        self.waiting.set()
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            self.cancelled.append(model)
            raise


async def test_a_caller_that_is_gone() -> None:
    requests = [pb.InferRequest(request_id=name, encode=pb.EncodeRequest(model=name)) for name in ("quick", "slow")]
    dispatch = FakeDispatch()
    stream = InferStream(cast(Dispatch, dispatch), Auth(None), cast(Any, FakeContext(*requests)))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(stream.serve(), 5)
    assert dispatch.cancelled == ["slow"]
    with dispatch.room.taken(1000):
        pass


async def test_a_fault_of_ours_is_not_taken_for_it() -> None:
    context = FakeContext(pb.InferRequest(request_id="a", encode=pb.EncodeRequest(model="quick")))
    dispatch = FakeDispatch()
    dispatch.waiting.set()

    async def write(_: bytes) -> None:
        raise RuntimeError("a fault")

    context.write = write
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(InferStream(cast(Dispatch, dispatch), Auth(None), cast(Any, context)).serve(), 5)


async def test_a_request_without_room_waits_for_it() -> None:
    dispatch = FakeDispatch()
    context = FakeContext(pb.InferRequest(request_id="a", encode=pb.EncodeRequest(model="slow")))
    with dispatch.room.taken(1000):
        stream = asyncio.create_task(InferStream(cast(Dispatch, dispatch), Auth(None), cast(Any, context)).serve())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not dispatch.waiting.is_set()
    await asyncio.wait_for(dispatch.waiting.wait(), 5)
    stream.cancel()
    await asyncio.wait([stream])
    with dispatch.room.taken(1000):
        pass
