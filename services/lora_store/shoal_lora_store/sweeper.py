"""Removes what requests left in object storage: items and results whose worker or gateway died before it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from shoal_common import limits, logs
from shoal_common.blobs import BlobError, Blobs

log = logs.get("sweeper")
PERIOD_S = 300.0
MARGIN_S = 600.0
"""Clocks of machines may differ by less."""
SWEEP_BLOBS = 10_000
"""At most so many at once: what is left waits for the next sweep."""
SWEEP_S = 240.0

assert SWEEP_S < PERIOD_S, "a sweep is over when the next one begins"


class Sweeper:
    """Sweeps now and then. No unit outlives the longest deadline, so older blobs are nobody's."""

    def __init__(self, blobs: Blobs, clock: Callable[[], float] = time.time) -> None:
        self._blobs = blobs
        self._clock = clock

    async def run(self) -> None:
        """Sweeps for ever."""
        while True:
            await self.sweep()
            await asyncio.sleep(PERIOD_S)

    async def sweep(self) -> int:
        """Sweeps once; how many blobs it removed."""
        try:
            async with asyncio.timeout(SWEEP_S):
                swept = await self._blobs.sweep(self._clock() - limits.DEADLINE_MAX_S - MARGIN_S, SWEEP_BLOBS)
        except (BlobError, TimeoutError) as error:
            log.warning("a sweep was not finished", error=str(error))
            return 0
        if swept.blobs:
            log.info("old blobs were removed", blobs=swept.blobs, size_bytes=swept.size_bytes, is_all=swept.is_all)
        return swept.blobs
