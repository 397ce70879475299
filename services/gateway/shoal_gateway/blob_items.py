"""Items that are too large for the queue: written to object storage while their units' headers are queued already."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

from shoal_common import limits, logs
from shoal_common.blob_removal import BlobRemoval
from shoal_common.blobs import ITEMS, Blob, BlobError, Blobs, Data, digest, key_of
from shoal_common.lanes import shard_of
from shoal_gateway import item_faults, metrics
from shoal_gateway.cancellations import Cancellations
from shoal_gateway.results import Waiting
from shoal_gateway.units import Run

log = logs.get("blob-items")
NOTHING: contextlib.nullcontext[Mapping[str, Blob]] = contextlib.nullcontext({})


class BlobItems:
    """Writes the blobs of requests. Whoever ends a unit removes its blob: its worker, or the gateway."""

    def __init__(self, blobs: Blobs | None, removal: BlobRemoval, cancellations: Cancellations) -> None:
        self._blobs = blobs
        self._removal = removal
        self._cancellations = cancellations

    @property
    def has_storage(self) -> bool:
        """Whether larger items than the queue carries can be taken."""
        return self._blobs is not None

    @property
    def least_bytes(self) -> int:
        """Items of more bytes are blobs; without object storage none that is taken is."""
        return limits.BLOB_ITEM_BYTES if self.has_storage else limits.ITEM_BYTES

    def written(
        self, runs: Mapping[str, Run], waiting: Waiting, deadline_s: float
    ) -> contextlib.AbstractAsyncContextManager[Mapping[str, Blob]]:
        """Writes the runs that are blobs while the block has their units published and answered.

        Gives the blobs by unit id, their digests computed beside the loop. An item that cannot be written gets its
        error for a result and its unit is cancelled; the others go on. What is written of units that stay without an
        answer is removed.
        """
        items = {unit_id: run.items[0] for unit_id, run in runs.items() if run.is_blob}
        return self._written(items, waiting, deadline_s) if items else NOTHING

    @contextlib.asynccontextmanager
    async def _written(
        self, items: Mapping[str, Data], waiting: Waiting, deadline_s: float
    ) -> AsyncIterator[Mapping[str, Blob]]:
        keys = {unit_id: key_of(ITEMS, unit_id, 0) for unit_id in items}
        writes = [
            asyncio.create_task(self._write(keys[unit_id], item, unit_id, waiting, deadline_s))
            for unit_id, item in items.items()
        ]
        try:
            digests = await asyncio.gather(*map(digest, items.values()))
            yield {
                unit_id: Blob(0, keys[unit_id], len(items[unit_id]), sha256)
                for unit_id, sha256 in zip(items, digests, strict=True)
            }
        finally:
            for write in writes:
                write.cancel()
            for ended in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(ended, Exception):
                    log.error("a blob was not written", request_id=waiting.request_id, exc_info=ended)
            self._removal.add(keys[unit_id] for unit_id in waiting.answer.open_units if unit_id in keys)

    async def _write(self, key: str, item: Data, unit_id: str, waiting: Waiting, deadline_s: float) -> None:
        assert self._blobs is not None, "runs are blobs only where there is object storage"
        try:
            async with asyncio.timeout(limits.BLOB_TRANSFER_S):
                await self._blobs.put(key, item)
        except (BlobError, TimeoutError) as error:
            log.error("an item could not be written", request_id=waiting.request_id, key=key, error=str(error))
            waiting.give_up(unit_id, item_faults.lost(item, "item", error))
            metrics.cancelled_units.add(1)
            self._cancellations.add(shard_of(waiting.lane), [unit_id], deadline_s - time.monotonic())
            self._removal.add([key])
            return
        metrics.blob_bytes.add(len(item), kind=ITEMS)
