"""The LoRA store as a process: pushes, fetches, bad input, and being killed in the middle of a push."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from shoal.lora.v1 import lora_pb2, lora_pb2_grpc
from shoal_common import grpc_server, limits
from tests.support.refusal import refused
from tests.support.service import Service
from tests.support.until import until

DATA = random.Random(7).randbytes(5 * limits.MIB + 77)
DIGEST = hashlib.sha256(DATA).hexdigest()
Part = lora_pb2.PushRequest


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service("shoal_lora_store", tmp_path, blobs=tmp_path / "blobs")
    service.start()
    yield service
    service.kill()


@pytest.fixture
async def store(service: Service) -> AsyncIterator[lora_pb2_grpc.LoraStoreServiceStub]:
    await service.serving()
    async with grpc_server.channel(service.address) as channel:
        yield lora_pb2_grpc.LoraStoreServiceStub(channel)


def header(digest: str = DIGEST, size: int = len(DATA)) -> Part:
    return Part(header=lora_pb2.PushHeader(digest=digest, size_bytes=size))


def push_of(data: bytes, digest: str = "") -> list[Part]:
    cuts = range(0, len(data), limits.CHUNK_BYTES)
    head = header(digest or hashlib.sha256(data).hexdigest(), len(data))
    return [head, *(Part(chunk=data[at : at + limits.CHUNK_BYTES]) for at in cuts)]


async def fetch(store: lora_pb2_grpc.LoraStoreServiceStub, digest: str, offset: int = 0) -> bytes:
    parts = [part async for part in store.Fetch(lora_pb2.FetchRequest(digest=digest, offset_bytes=offset), timeout=20)]
    assert all(len(part.chunk) <= limits.CHUNK_BYTES for part in parts)
    assert len({part.size_bytes for part in parts}) == 1
    return b"".join(part.chunk for part in parts)


async def test_a_blob_is_pushed_once_and_fetched_from_any_offset(store: lora_pb2_grpc.LoraStoreServiceStub):
    first = await store.Push(iter(push_of(DATA)), timeout=20)
    assert (first.digest, first.size_bytes, first.created) == (DIGEST, len(DATA), True)
    again = await store.Push(iter(push_of(DATA)), timeout=20)
    assert (again.digest, again.size_bytes, again.created) == (DIGEST, len(DATA), False)
    for offset in (0, 1, limits.CHUNK_BYTES, len(DATA) - 1, len(DATA)):
        assert await fetch(store, DIGEST, offset) == DATA[offset:]
    known = await store.Stat(lora_pb2.StatRequest(digests=["0" * 64, DIGEST, DIGEST]), timeout=5)
    assert [(blob.digest, blob.size_bytes) for blob in known.blobs] == [(DIGEST, len(DATA))]


async def test_the_same_blob_pushed_by_many_at_once(store: lora_pb2_grpc.LoraStoreServiceStub):
    answers = await asyncio.gather(*(store.Push(iter(push_of(DATA)), timeout=30) for _ in range(8)))
    assert [answer.digest for answer in answers] == [DIGEST] * 8
    assert sum(answer.created for answer in answers) == 1
    assert await fetch(store, DIGEST) == DATA


BAD_PUSHES: dict[str, tuple[list[Part], str, str]] = {
    "nothing": ([], "HEADER_MISSING", "header"),
    "chunk first": ([Part(chunk=b"x"), header()], "HEADER_MISSING", "header"),
    "empty part first": ([Part()], "HEADER_MISSING", "header"),
    "header twice": ([header(), header()], "CHUNK_MISSING", "chunk"),
    "empty part later": ([header(), Part()], "CHUNK_MISSING", "chunk"),
    "digest too short": ([header("abc")], "INVALID_FIELD", "header.digest"),
    "digest in upper case": ([header(DIGEST.upper())], "INVALID_FIELD", "header.digest"),
    "digest as a path": ([header("../" * 21 + "a")], "INVALID_FIELD", "header.digest"),
    "digest with a newline": ([header(DIGEST + "\n")], "INVALID_FIELD", "header.digest"),
    "blob too large": ([header(size=limits.BLOB_BYTES + 1)], "LIMIT_EXCEEDED", "header.size_bytes"),
    "largest size of all": ([header(size=2**64 - 1)], "LIMIT_EXCEEDED", "header.size_bytes"),
    "chunk too large": ([header(), Part(chunk=bytes(limits.CHUNK_BYTES + 1))], "LIMIT_EXCEEDED", "chunk"),
    "other bytes": (push_of(DATA, "0" * 64), "DIGEST_MISMATCH", "header.digest"),
    "cut short": (push_of(DATA)[:-1], "SIZE_MISMATCH", "header.size_bytes"),
    "too long": ([*push_of(DATA), Part(chunk=b"x")], "SIZE_MISMATCH", "header.size_bytes"),
}


@pytest.mark.parametrize("case", BAD_PUSHES)
async def test_a_bad_push_names_its_fault_and_stores_nothing(
    store: lora_pb2_grpc.LoraStoreServiceStub, tmp_path: Path, case: str
):
    parts, reason, field = BAD_PUSHES[case]
    await refused(store.Push(iter(parts), timeout=20), grpc.StatusCode.INVALID_ARGUMENT, reason, field)
    assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


async def test_bad_reads(store: lora_pb2_grpc.LoraStoreServiceStub):
    await store.Push(iter(push_of(b"abc")), timeout=5)
    digest = hashlib.sha256(b"abc").hexdigest()
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    await refused(fetch(store, "0" * 64), grpc.StatusCode.NOT_FOUND, "BLOB_NOT_FOUND")
    await refused(fetch(store, "nope"), invalid, "INVALID_FIELD", "digest")
    await refused(fetch(store, digest, 4), invalid, "INVALID_FIELD", "offset_bytes")
    many = lora_pb2.StatRequest(digests=["0" * 64] * (limits.ADAPTER_STAT_DIGESTS + 1))
    await refused(store.Stat(many, timeout=5), invalid, "LIMIT_EXCEEDED", "digests")
    bad = lora_pb2.StatRequest(digests=["0" * 64, "x"])
    await refused(store.Stat(bad, timeout=5), invalid, "INVALID_FIELD", "digests[1]")


async def test_a_blob_announced_with_another_length_than_it_has(store: lora_pb2_grpc.LoraStoreServiceStub):
    await store.Push(iter(push_of(DATA)), timeout=20)
    push = [header(size=3), Part(chunk=b"abc")]
    await refused(
        store.Push(iter(push), timeout=20),
        grpc.StatusCode.INVALID_ARGUMENT,
        "SIZE_MISMATCH",
        "header.size_bytes",
    )


@pytest.mark.parametrize("how", ["cancel", "kill"])
async def test_half_a_push_is_never_visible(
    service: Service, store: lora_pb2_grpc.LoraStoreServiceStub, tmp_path: Path, how: str
):
    data = random.Random(9).randbytes(20 * limits.MIB)
    digest = hashlib.sha256(data).hexdigest()
    uploads = tmp_path / "blobs" / "uploads"

    async def most() -> AsyncIterator[Part]:
        for part in push_of(data)[:-1]:
            yield part
        await asyncio.Event().wait()

    call = store.Push(most(), timeout=60)
    await until(lambda: any(path.stat().st_size for path in uploads.glob("*")), 20, "nothing was written yet")
    if how == "cancel":
        call.cancel()
    else:
        service.kill()
        service.start()
        await service.serving()
    await until(lambda: not any(uploads.glob("*")), 10, "the unfinished upload was not removed")
    await refused(fetch(store, digest), grpc.StatusCode.NOT_FOUND, "BLOB_NOT_FOUND")
    answer = await store.Push(iter(push_of(data)), timeout=30, wait_for_ready=True)
    assert answer.created
    assert await fetch(store, digest) == data


async def test_memory_does_not_grow_with_the_blob(service: Service, store: lora_pb2_grpc.LoraStoreServiceStub):
    chunk, count = bytes(limits.CHUNK_BYTES), 256
    whole = hashlib.sha256()
    for _ in range(count):
        whole.update(chunk)
    parts = [header(whole.hexdigest(), count * len(chunk)), *[Part(chunk=chunk)] * count]
    process = psutil.Process(service.pid)
    before = process.memory_info().rss
    assert (await store.Push(iter(parts), timeout=60)).created
    length = 0
    async for part in store.Fetch(lora_pb2.FetchRequest(digest=whole.hexdigest()), timeout=60):
        length += len(part.chunk)
    assert length == count * len(chunk)
    assert process.memory_info().rss - before < count * len(chunk) / 2


async def test_blobs_outlive_a_kill(service: Service, store: lora_pb2_grpc.LoraStoreServiceStub):
    await store.Push(iter(push_of(DATA)), timeout=20)
    service.kill()
    service.start()
    await service.serving()
    assert await fetch(store, DIGEST) == DATA


async def test_it_ends_in_order(service: Service):
    await service.serving()
    assert service.stop() == 0
