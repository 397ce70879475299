"""Results that are too large for a message: read from object storage once their request is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from shoal_common import limits, logs
from shoal_common.blob_removal import BlobRemoval
from shoal_common.blobs import RESULTS, Blob, BlobError, Blobs, BlobsAway, Data
from shoal_gateway import item_faults, metrics
from shoal_gateway.reassembly import Answer

log = logs.get("blob-results")


class BlobResults:
    """Reads the results' blobs, and removes them."""

    def __init__(self, blobs: Blobs | None, removal: BlobRemoval) -> None:
        self._blobs = blobs
        self._removal = removal

    async def read(self, answer: Answer, items: Sequence[Data], deadline_s: float) -> None:
        """Puts an answer's blobs in their places; one that cannot be read in time becomes that item's error."""
        if not answer.blobs:
            return
        room = asyncio.Semaphore(limits.RESULT_FETCHES)

        async def one(index: int, blob: Blob) -> None:
            async with room:
                answer.put(index, await self._read(blob, items[index], deadline_s))

        try:
            async with asyncio.TaskGroup() as group:
                for index, blob in answer.blobs:
                    group.create_task(one(index, blob))
        finally:
            self._removal.add(blob.key for _, blob in answer.blobs)

    async def _read(self, blob: Blob, item: Data, deadline_s: float) -> bytes:
        try:
            if self._blobs is None:
                raise BlobsAway("this gateway has no object storage; give it the workers' SHOAL_BLOBS")
            async with asyncio.timeout(deadline_s - time.monotonic()):
                result = bytes(await self._blobs.get(blob))
        except (BlobError, TimeoutError) as error:
            log.error("a result could not be read", key=blob.key, error=str(error))
            return item_faults.lost(item, "result", error)
        metrics.blob_bytes.add(blob.size_bytes, kind=RESULTS)
        return result
