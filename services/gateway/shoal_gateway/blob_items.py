"""Items that are too large for the queue: written to object storage while their units' headers are queued already."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

from shoal_common import limits, logs
from shoal_common.blob_removal import BlobRemoval
from shoal_common.blobs import ITEMS, Blob, BlobError, Blobs, digest, key_of
from shoal_common.lanes import shard_of
from shoal_gateway import item_faults, metrics
from shoal_gateway.cancellations import Cancellations
from shoal_gateway.results import Waiting
from shoal_gateway.units import Run

log = logs.get("blob-items")


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

    async def name(self, runs: Mapping[str, Run]) -> dict[str, Blob]:
        """The blobs of those runs that are one, by unit id; their digests are computed beside the loop."""
        large = {unit_id: run.items[0] for unit_id, run in runs.items() if run.is_blob}
        if not large:
            return {}
        digests = await asyncio.gather(*map(digest, large.values()))
        return {
            unit_id: Blob(0, key_of(ITEMS, unit_id, 0), len(item), sha256)
            for (unit_id, item), sha256 in zip(large.items(), digests, strict=True)
        }

    @contextlib.asynccontextmanager
    async def written(
        self, blobs: Mapping[str, Blob], runs: Mapping[str, Run], waiting: Waiting, deadline_s: float
    ) -> AsyncIterator[None]:
        """Writes blobs while the block has their units published and answered.

        An item that cannot be written gets its error for a result and its unit is cancelled; the others go on.
        What is written of units that stay without an answer is removed.
        """
        if not blobs:
            yield
            return
        writes = [
            asyncio.create_task(self._write(blob, runs[unit_id], unit_id, waiting, deadline_s))
            for unit_id, blob in blobs.items()
        ]
        try:
            yield
        finally:
            for write in writes:
                write.cancel()
            for ended in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(ended, Exception):
                    log.error("a blob was not written", request_id=waiting.request_id, exc_info=ended)
            self._removal.add(blobs[unit_id].key for unit_id in waiting.answer.open_units if unit_id in blobs)

    async def _write(self, blob: Blob, run: Run, unit_id: str, waiting: Waiting, deadline_s: float) -> None:
        assert self._blobs is not None, "runs are blobs only where there is object storage"
        item = run.items[0]
        try:
            async with asyncio.timeout(limits.BLOB_TRANSFER_S):
                await self._blobs.put(blob.key, item)
        except (BlobError, TimeoutError) as error:
            log.error("an item could not be written", request_id=waiting.request_id, key=blob.key, error=str(error))
            waiting.give_up(unit_id, item_faults.lost(item, "item", error))
            metrics.cancelled_units.add(1)
            self._cancellations.add(shard_of(waiting.lane), [unit_id], deadline_s - time.monotonic())
            self._removal.add([blob.key])
            return
        metrics.blob_bytes.add(blob.size_bytes, {"kind": ITEMS})
