"""Brings the blobs of units to this machine while their headers wait: a few at once, and other units pass by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import blob_faults, limits, logs
from shoal_common.blobs import Blob, BlobDamaged, BlobError, BlobMissing, Blobs, BlobsAway
from shoal_common.broker_clock import BrokerClock
from shoal_worker.decisions.unit import HeldUnit, Stage

log = logs.get("fetching")
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.05
"""Between two looks for a blob that is not there yet."""
LATE_S = 1.0
"""A unit whose blob is not there by then counts no more as work that is here: else it would keep others away."""

Fetched = list[sidecar_pb2.FetchedItem]


class Fetching:
    """One task a unit. It ends with the unit's admission, or with the unit."""

    def __init__(
        self,
        blobs: Blobs | None,
        clock: BrokerClock,
        group: asyncio.TaskGroup,
        admit: Callable[[HeldUnit, Fetched], Awaitable[None]],
        late: Callable[[HeldUnit], None],
        expired: Callable[[HeldUnit], None],
    ) -> None:
        """`admit` is called with what came of each blob, an item or its fault, and returns when it is sent."""
        self._blobs = blobs
        self._clock = clock
        self._group = group
        self._admit = admit
        self._late = late
        self._expired = expired
        self._units: set[HeldUnit] = set()
        self._room = asyncio.Semaphore(limits.FETCHES)

    def here(self, unit: HeldUnit) -> Fetched | None:
        """What its blobs are where nothing has to be waited for: it has none, or all are files that are here."""
        if not unit.blobs:
            return []
        if unit in self._units or self._blobs is None or not self._blobs.is_folder:
            return None
        try:
            return [_file(self._blobs, blob) for blob in unit.blobs]
        except BlobError:
            return None

    def start(self, unit: HeldUnit) -> bool:
        """Fetches a unit's blobs; False when that is going on already."""
        if unit in self._units:
            return False
        self._units.add(unit)
        task = self._group.create_task(self._fetch(unit))
        # Not in the task: one that is cancelled before it begins would stay.
        task.add_done_callback(lambda _: self._units.discard(unit))
        return True

    async def _fetch(self, unit: HeldUnit) -> None:
        pause_s, begun_s = FIRST_PAUSE_S, None
        while True:
            async with self._room:
                if unit.stage is Stage.GONE:  # While it waited for its turn.
                    return
                now_s = time.monotonic()
                begun_s = begun_s or now_s
                if unit.deadline_s <= now_s:
                    self._expired(unit)
                    return
                fetched, is_worth_waiting = await self._look(unit, now_s - begun_s)
                if not is_worth_waiting:
                    await self._admit(unit, fetched)
                    return
            if now_s - begun_s >= LATE_S:
                self._late(unit)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _look(self, unit: HeldUnit, tried_s: float) -> tuple[Fetched, bool]:
        """What comes of a unit's blobs now, and whether more may come of them later."""
        may_come = self._clock.now_s() - unit.published_s < limits.BLOB_WAIT_S
        fetched, is_worth_waiting = [], False
        for blob in unit.blobs:
            try:
                async with asyncio.timeout(limits.BLOB_TRANSFER_S):
                    fetched.append(await self._item(blob))
            except (BlobError, TimeoutError) as error:
                waits = may_come if isinstance(error, BlobMissing) else tried_s < limits.BLOB_AWAY_S
                if isinstance(error, BlobDamaged) or not waits:
                    log.error("an item could not be read", unit=unit.id, request_id=unit.request_id, error=str(error))
                    status = blob_faults.status("item", error).SerializeToString()
                    fetched.append(sidecar_pb2.FetchedItem(index=blob.index, fault=status))
                else:
                    is_worth_waiting = True
        return fetched, is_worth_waiting

    async def _item(self, blob: Blob) -> sidecar_pb2.FetchedItem:
        if self._blobs is None:
            raise BlobsAway("this worker has no object storage; give it the gateways' SHOAL_BLOBS")
        if self._blobs.is_folder:
            return _file(self._blobs, blob)
        return sidecar_pb2.FetchedItem(index=blob.index, item=bytes(await self._blobs.get(blob)))


def _file(blobs: Blobs, blob: Blob) -> sidecar_pb2.FetchedItem:
    return sidecar_pb2.FetchedItem(index=blob.index, path=str(blobs.file(blob)))
