"""LoraStoreService: translates between the wire and storage."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from grpc.aio import ServicerContext

from shoal.lora.v1 import lora_pb2, lora_pb2_grpc
from shoal_common import errors, limits
from shoal_lora_store.storage import Storage

DIGEST = re.compile(r"[0-9a-f]{64}")
CHUNK_WAIT_S = 30.0
"""How long a push may be silent."""
HEADS_AT_ONCE = 32


class LoraStoreHandlers(lora_pb2_grpc.LoraStoreServiceServicer):
    """Checks what comes in; storage does the rest."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def Push(
        self, request_iterator: AsyncIterator[lora_pb2.PushRequest], context: ServicerContext
    ) -> lora_pb2.PushResponse:
        header = await _header(request_iterator)
        there = await self._storage.size(header.digest)
        if there is not None and there != header.size_bytes:
            raise errors.invalid_field(
                "header.size_bytes", f"says {header.size_bytes:,}, the blob here has {there:,}", "SIZE_MISMATCH"
            )
        created = there is None and await self._storage.write(
            header.digest, header.size_bytes, _chunks(request_iterator)
        )
        return lora_pb2.PushResponse(digest=header.digest, size_bytes=header.size_bytes, created=created)

    async def Fetch(
        self, request: lora_pb2.FetchRequest, context: ServicerContext
    ) -> AsyncIterator[lora_pb2.FetchResponse]:
        _check_digest("digest", request.digest)
        size = await self._storage.size(request.digest)
        if size is None:
            raise errors.not_found("blob", request.digest)
        if request.offset_bytes > size:
            raise errors.invalid_field("offset_bytes", f"is {request.offset_bytes:,}, the blob has {size:,} bytes")
        if request.offset_bytes == size:
            yield lora_pb2.FetchResponse(size_bytes=size)
        async for chunk in self._storage.read(request.digest, request.offset_bytes, size):
            yield lora_pb2.FetchResponse(size_bytes=size, chunk=bytes(chunk))

    async def Stat(self, request: lora_pb2.StatRequest, context: ServicerContext) -> lora_pb2.StatResponse:
        if len(request.digests) > limits.ADAPTER_STAT_DIGESTS:
            raise errors.too_large("digests", len(request.digests), limits.ADAPTER_STAT_DIGESTS, "entries")
        for index, digest in enumerate(request.digests):
            _check_digest(f"digests[{index}]", digest)
        room = asyncio.Semaphore(HEADS_AT_ONCE)

        async def head(digest: str) -> lora_pb2.PushHeader | None:
            async with room:
                size = await self._storage.size(digest)
            return None if size is None else lora_pb2.PushHeader(digest=digest, size_bytes=size)

        try:
            async with asyncio.TaskGroup() as group:
                heads = [group.create_task(head(digest)) for digest in dict.fromkeys(request.digests)]
        except* errors.CallError as failed:
            raise failed.exceptions[0] from None
        return lora_pb2.StatResponse(blobs=[blob for task in heads if (blob := task.result()) is not None])


async def _header(parts: AsyncIterator[lora_pb2.PushRequest]) -> lora_pb2.PushHeader:
    """The first part, which must be a right header."""
    part = await _next(parts)
    if part is None or part.WhichOneof("part") != "header":
        raise errors.invalid_field("header", "must be the first message of a push, once", "HEADER_MISSING")
    _check_digest("header.digest", part.header.digest)
    if part.header.size_bytes > limits.BLOB_BYTES:
        raise errors.too_large("header.size_bytes", part.header.size_bytes, limits.BLOB_BYTES)
    return part.header


async def _chunks(parts: AsyncIterator[lora_pb2.PushRequest]) -> AsyncIterator[bytes]:
    """The parts after the header, which must be chunks."""
    while (part := await _next(parts)) is not None:
        if part.WhichOneof("part") != "chunk":
            raise errors.invalid_field("chunk", "must be what follows the header", "CHUNK_MISSING")
        yield part.chunk


async def _next(parts: AsyncIterator[lora_pb2.PushRequest]) -> lora_pb2.PushRequest | None:
    """The next part; None when the caller has sent all."""
    try:
        async with asyncio.timeout(CHUNK_WAIT_S):
            return await anext(parts, None)
    except TimeoutError:
        raise errors.deadline_exceeded(f"nothing came for {CHUNK_WAIT_S:.0f} s; push again") from None


def _check_digest(field: str, digest: str) -> None:
    if not DIGEST.fullmatch(digest):
        raise errors.invalid_field(field, "must be a sha256: 64 of 0-9 and a-f")
