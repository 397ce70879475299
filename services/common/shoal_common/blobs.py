"""Items and results that are too large for the queue, in object storage: written whole, checked when read, removed.

Keys are <kind>/<hour in UTC>/<name>, so that what nobody removed is found by listing hours. Names begin with the
unit's id: nobody writes, reads or removes a blob of another unit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore

from shoal.work.v1 import work_pb2
from shoal_common import limits

ITEMS = "items"
RESULTS = "results"
HOUR_FORMAT = "%Y%m%d%H"
HOUR_S = 3600
DIGEST_BYTES = 32
_KEY = re.compile(r"(items|results)/[0-9]{10}/([A-Za-z0-9._-]{1,128})-[A-Za-z0-9.]{1,32}")
Data: TypeAlias = bytes | memoryview


class BlobError(Exception):
    """A blob cannot be had or kept."""


class BlobMissing(BlobError):
    """It is not there: not yet, or no more."""


class BlobDamaged(BlobError):
    """Its bytes are not those that were written."""


class BlobsAway(BlobError):
    """Object storage does not answer, or refuses."""


class BadReference(ValueError):
    """What a message says of a blob cannot be right."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as a unit or its result names it."""

    index: int
    """Of the item within the unit."""
    key: str
    size_bytes: int
    sha256: bytes

    def message(self) -> work_pb2.Blob:
        """As it travels."""
        return work_pb2.Blob(index=self.index, key=self.key, size_bytes=self.size_bytes, sha256=self.sha256)


class Swept(NamedTuple):
    """What a sweep removed."""

    blobs: int
    size_bytes: int
    is_all: bool
    """Whether nothing as old is left."""


def key_of(kind: str, unit_id: str, part: str | int) -> str:
    """A new blob's key; `part` tells the unit's blobs from each other."""
    return f"{kind}/{time.strftime(HOUR_FORMAT, time.gmtime())}/{unit_id}-{part}"


def references(kind: str, unit_id: str, blobs: Iterable[work_pb2.Blob], items: int) -> tuple[Blob, ...]:
    """What a message says of a unit's blobs, checked: nothing of it is used before.

    Raises:
        BadReference: a key that is not the unit's own, an index that the unit doesn't have or has twice, an
            impossible size or digest.
    """
    checked: dict[int, Blob] = {}
    for blob in blobs:
        parts = _KEY.fullmatch(blob.key)
        if parts is None or parts[1] != kind or parts[2] != unit_id:
            raise BadReference(f"{blob.key[:200]!r} is no key of the unit's {kind}")
        if blob.index >= items or blob.index in checked:
            raise BadReference(f"blob {blob.index} stands for no item of its own: the unit has {items}")
        if not 0 < blob.size_bytes <= limits.MEDIA_ITEM_BYTES:
            raise BadReference(
                f"blob {blob.index} has {blob.size_bytes:,} bytes; 1 to {limits.MEDIA_ITEM_BYTES:,} are allowed"
            )
        if len(blob.sha256) != DIGEST_BYTES:
            raise BadReference(f"blob {blob.index} has no sha256")
        checked[blob.index] = Blob(blob.index, blob.key, blob.size_bytes, blob.sha256)
    if kind == ITEMS and sum(blob.size_bytes for blob in checked.values()) > limits.MEDIA_ITEM_BYTES:
        raise BadReference(f"a unit's blobs have at most {limits.MEDIA_ITEM_BYTES:,} bytes together")
    return tuple(checked.values())


async def digest(data: Data) -> bytes:
    """SHA-256, computed beside the loop."""
    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())


class Blobs:
    """A folder, or object storage by URL. It is opened when it is first used, so that a process serves without it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._folder = None if "://" in where else Path(where).absolute()
        self._opened: ObjectStore | None = None

    async def put(self, key: str, data: Data) -> None:
        """Writes a blob: it is visible whole or not at all.

        Raises:
            BlobsAway: it could not be written.
        """
        with _typed("written", key):
            # In parts it would be copied once more, and a write that is given up would leave some of them.
            await obstore.put_async(self._store(), key, data, use_multipart=False)

    async def get(self, blob: Blob) -> memoryview:
        """A blob's bytes, checked.

        Raises:
            BlobMissing, BlobDamaged, BlobsAway.
        """
        with _typed("read", blob.key):
            answer = await obstore.get_async(self._store(), blob.key)
            _check_size(blob, answer.meta["size"])
            data = memoryview(await answer.bytes_async())
        _check_size(blob, len(data))
        found = await digest(data)
        if found != blob.sha256:
            raise BlobDamaged(f"{blob.key} has other bytes than were written: its sha256 is {found.hex()}")
        return data

    @property
    def is_folder(self) -> bool:
        """Whether blobs are files of this machine."""
        return self._folder is not None

    def file(self, blob: Blob) -> Path:
        """The file that is a blob, its length checked; only where blobs are files. Who reads it checks its digest.

        Raises:
            BlobMissing, BlobDamaged, BlobsAway.
        """
        assert self._folder is not None, "blobs in object storage are no files"
        path = self._folder / blob.key
        with _typed("read", blob.key):
            _check_size(blob, path.stat().st_size)  # It takes less time than a thread takes to wake.
        return path

    async def remove(self, keys: Iterable[str]) -> None:
        """Removes blobs; those that are not there are none the worse.

        Raises:
            BlobsAway: not all could be removed.
        """
        names = list(keys)
        if self._folder is None:
            with _typed("removed", f"{len(names)} blobs"), contextlib.suppress(FileNotFoundError):
                await obstore.delete_async(self._store(), names)
            return
        with _typed("removed", f"{len(names)} blobs"):
            await asyncio.to_thread(_unlink, self._folder, names)

    async def sweep(self, before_s: float, most: int) -> Swept:
        """Removes at most so many of the blobs that were written before a time (seconds since 1970), by the hour.

        Raises:
            BlobsAway: not all could be removed.
        """
        # The last hour that is over by then.
        last = time.strftime(HOUR_FORMAT, time.gmtime(before_s - HOUR_S))
        blobs = size_bytes = 0
        with _typed("listed", "old ones"):
            for kind in (ITEMS, RESULTS):
                hours = (await obstore.list_with_delimiter_async(self._store(), kind))["common_prefixes"]
                for hour in sorted(hour for hour in hours if hour.rsplit("/", 1)[1] <= last):
                    async for page in obstore.list(self._store(), prefix=hour):
                        some = page[: most - blobs]
                        await self.remove([entry["path"] for entry in some])
                        blobs += len(some)
                        size_bytes += sum(entry["size"] for entry in some)
                        if len(some) < len(page):
                            return Swept(blobs, size_bytes, is_all=False)
                    if self._folder is not None:
                        # With what killed writers left: a folder's listing hides unfinished files.
                        await asyncio.to_thread(shutil.rmtree, self._folder / hour, ignore_errors=True)
        return Swept(blobs, size_bytes, is_all=True)

    def _store(self) -> ObjectStore:
        if self._opened is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._opened = LocalStore(str(self._folder), mkdir=True)
            else:
                self._opened = obstore.store.from_url(self._where)
        return self._opened


def _check_size(blob: Blob, found: int) -> None:
    if found != blob.size_bytes:
        raise BlobDamaged(f"{blob.key} has {found:,} bytes instead of {blob.size_bytes:,}")


def _unlink(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _typed(what: str, key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BlobMissing(key) from None
    except (BaseError, OSError, ValueError) as error:
        raise BlobsAway(f"{key} could not be {what}: {str(error).splitlines()[0]}") from error
