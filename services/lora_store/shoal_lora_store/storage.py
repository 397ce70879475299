"""Blobs in object storage or a folder, by digest: visible whole or not at all.

An upload is written under `uploads/`, and renamed to its digest's key once its bytes are right and, in a
folder, synced to disk. What a killed process leaves under `uploads/` is removed at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore

from shoal_common import errors, limits, logs
from shoal_lora_store.upload import Upload

log = logs.get("storage")
BLOBS = "blobs"
UPLOADS = "uploads"
PART_BYTES = 8 * limits.MIB
PARTS_IN_FLIGHT = 2
"""An upload holds PART_BYTES * (PARTS_IN_FLIGHT + 1) of memory at most."""


class Storage:
    """A store of blobs. Every method raises CallError: UNAVAILABLE when object storage fails."""

    def __init__(self, where: str) -> None:
        """Opens a folder (made if absent) or a URL of object storage.

        Raises:
            ValueError, OSError, obstore.exceptions.BaseError: it cannot be used.
        """
        self._folder = None if "://" in where else Path(where).absolute()
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._store: ObjectStore = LocalStore(str(self._folder), mkdir=True)
        else:
            self._store = obstore.store.from_url(where)
        self._finishing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def clean(self) -> None:
        """Removes what unfinished uploads left; call it before any upload begins."""
        if self._folder is not None:
            # A folder's unfinished files are hidden from its listing.
            await asyncio.to_thread(shutil.rmtree, self._folder / UPLOADS, ignore_errors=True)
            return
        with _typed():
            async for page in obstore.list(self._store, prefix=f"{UPLOADS}/"):
                await obstore.delete_async(self._store, [entry["path"] for entry in page])

    async def size(self, digest: str) -> int | None:
        """A blob's length in bytes; None when it is not here."""
        with _typed():
            try:
                return (await obstore.head_async(self._store, _key(digest)))["size"]
            except FileNotFoundError:
                return None

    async def write(self, digest: str, size_bytes: int, chunks: AsyncIterator[bytes]) -> bool:
        """Stores a blob from its chunks; whether it is new. Nothing is visible unless all of it is right.

        Raises:
            CallError: INVALID_ARGUMENT; the bytes are not what was announced.
        """
        upload = Upload(digest, size_bytes)
        temporary = f"{UPLOADS}/{secrets.token_hex(16)}"
        with _typed():
            writer = obstore.open_writer_async(
                self._store, temporary, buffer_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT
            )
            try:
                async for chunk in chunks:
                    upload.take(chunk)
                    await writer.write(chunk)
                upload.check()
                await writer.close()
            finally:
                del writer  # One that is dropped without close takes back what it wrote.
            async with self._finishing.setdefault(digest, asyncio.Lock()):
                return await self._publish(temporary, digest)

    async def read(self, digest: str, offset_bytes: int, size_bytes: int) -> AsyncIterator[memoryview]:
        """A blob's bytes from an offset to its length, in chunks of at most CHUNK_BYTES."""
        for start in range(offset_bytes, size_bytes, PART_BYTES):
            end = min(start + PART_BYTES, size_bytes)
            with _typed():
                try:
                    part = await obstore.get_range_async(self._store, _key(digest), start=start, end=end)
                except FileNotFoundError:
                    raise errors.not_found("blob", digest) from None
            view = memoryview(part)
            for at in range(0, len(view), limits.CHUNK_BYTES):
                yield view[at : at + limits.CHUNK_BYTES]

    async def _publish(self, temporary: str, digest: str) -> bool:
        """Gives a finished upload its key, unless another upload was first."""
        if await self.size(digest) is not None:
            await obstore.delete_async(self._store, temporary)
            return False
        if self._folder is not None:
            await asyncio.to_thread(_sync, self._folder / temporary)
        await obstore.rename_async(self._store, temporary, _key(digest))
        if self._folder is not None:
            await asyncio.to_thread(_sync_folders, self._folder / _key(digest), self._folder)
        return True


def _key(digest: str) -> str:
    return f"{BLOBS}/{digest[:2]}/{digest}"


def _sync(path: Path) -> None:
    """Has a file or a folder written to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folders(path: Path, root: Path) -> None:
    """Has a file's name written to disk: its folders up to the root."""
    for folder in path.parents:
        _sync(folder)
        if folder == root:
            return


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Turns what object storage raises into an error that a caller can act on."""
    try:
        yield
    except (BaseError, OSError) as error:
        log.error("object storage failed", exc_info=error)
        raise errors.unavailable("the store's storage does not answer; try again", 1.0, "STORAGE_FAILED") from error
