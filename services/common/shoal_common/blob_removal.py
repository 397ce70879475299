"""Removes blobs that are done with: keys are left here and go in batches; what is lost goes with the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from shoal_common import logs
from shoal_common.blobs import BlobError, Blobs

log = logs.get("blob-removal")
GATHER_S = 0.2
"""Others come meanwhile; and a write that was given up may still end, and is removed then."""
BATCH_KEYS = 1000
WAITING_KEYS = 100_000
REMOVE_S = 30.0


class BlobRemoval:
    """Owns the removing of one process's blobs; nobody waits for it."""

    def __init__(self, blobs: Blobs | None) -> None:
        self._blobs = blobs
        self._keys: dict[str, None] = {}
        self._some = asyncio.Event()

    def add(self, keys: Iterable[str]) -> None:
        """Removes blobs soon; more than can wait are left to the sweep."""
        if self._blobs is None:
            return
        for key in keys:
            if len(self._keys) < WAITING_KEYS:
                self._keys[key] = None
                self._some.set()

    async def run(self) -> None:
        """Removes for ever."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Removes what is there; once, for the sweep comes after it."""
        self._some.clear()
        keys, self._keys = list(self._keys), {}
        for start in range(0, len(keys), BATCH_KEYS):
            batch = keys[start : start + BATCH_KEYS]
            if self._blobs is not None:
                try:
                    async with asyncio.timeout(REMOVE_S):
                        await self._blobs.remove(batch)
                except (BlobError, TimeoutError) as error:
                    log.warning("blobs are left to the sweep", blobs=len(batch), error=str(error))
