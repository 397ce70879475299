"""Storage: a blob is there whole or not at all, in a folder and in object storage."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal_common import errors, limits
from shoal_lora_store.storage import PART_BYTES, Storage

SIZES = [0, 1, limits.CHUNK_BYTES, limits.CHUNK_BYTES + 1, PART_BYTES, 2 * PART_BYTES + 12_345]


def blob(size: int) -> tuple[bytes, str]:
    data = random.Random(size).randbytes(size)
    return data, hashlib.sha256(data).hexdigest()


async def chunks(data: bytes, then: Exception | None = None) -> AsyncIterator[bytes]:
    for at in range(0, len(data), limits.CHUNK_BYTES):
        yield data[at : at + limits.CHUNK_BYTES]
    if then is not None:
        raise then


async def read(storage: Storage, digest: str, offset: int, size: int) -> bytes:
    parts = [bytes(part) async for part in storage.read(digest, offset, size)]
    assert all(0 < len(part) <= limits.CHUNK_BYTES for part in parts)
    return b"".join(parts)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "blobs") if request.param == "folder" else "memory:///")


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_written_is_read_from_any_offset(storage: Storage, size: int):
    data, digest = blob(size)
    assert await storage.size(digest) is None
    assert await storage.write(digest, size, chunks(data))
    assert await storage.size(digest) == size
    for offset in {0, size // 3, max(0, size - 1), size}:
        assert await read(storage, digest, offset, size) == data[offset:]


async def test_the_same_bytes_at_once_are_stored_once(storage: Storage):
    data, digest = blob(3 * limits.MIB)
    created = await asyncio.gather(*(storage.write(digest, len(data), chunks(data)) for _ in range(5)))
    assert sorted(created) == [False] * 4 + [True]
    assert await read(storage, digest, 0, len(data)) == data


@pytest.mark.parametrize("size", [100, 2 * PART_BYTES])
async def test_a_failed_upload_leaves_nothing(tmp_path: Path, size: int):
    storage = Storage(str(tmp_path))
    data, digest = blob(size)
    for attempt in (
        storage.write(digest, size + 1, chunks(data)),
        storage.write("0" * 64, size, chunks(data)),
        storage.write(digest, size, chunks(data[:-1], errors.malformed("broken"))),
    ):
        with pytest.raises(errors.CallError):
            await attempt
    assert await storage.size(digest) is None
    assert files(tmp_path) == []


async def test_a_cancelled_upload_leaves_nothing(tmp_path: Path):
    storage = Storage(str(tmp_path))
    data, digest = blob(2 * PART_BYTES)
    reached = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        async for chunk in chunks(data):
            yield chunk
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(storage.write(digest, 2 * len(data), stalls()))
    await reached.wait()
    assert files(tmp_path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    assert files(tmp_path) == []


async def test_start_removes_what_a_killed_process_left(tmp_path: Path):
    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "half#1").write_bytes(b"half")
    storage = Storage(str(tmp_path))
    data, digest = blob(10)
    await storage.write(digest, 10, chunks(data))
    await storage.clean()
    assert [path.name for path in files(tmp_path)] == [digest]


async def test_object_storage_is_cleaned_at_start_too():
    import obstore

    storage = Storage("memory:///")
    data, digest = blob(10)
    await storage.write(digest, 10, chunks(data))
    await obstore.put_async(storage._store, "uploads/half", b"half")
    await storage.clean()
    assert [entry["path"] for page in obstore.list(storage._store) for entry in page] == [
        f"blobs/{digest[:2]}/{digest}"
    ]


async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path):
    storage = Storage(str(tmp_path))
    (tmp_path / "uploads").write_bytes(b"in the way")
    data, digest = blob(2 * PART_BYTES)
    with pytest.raises(errors.CallError) as failed:
        await storage.write(digest, len(data), chunks(data))
    assert failed.value.reason == "STORAGE_FAILED"
