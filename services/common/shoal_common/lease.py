"""A lease: of several replicas of a service, the one that may write. A key with a time to live."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from shoal_common import logs
from shoal_common.bucket import Bucket, Conflict
from shoal_common.nats_session import ApiError, BrokerTimeout, Session

log = logs.get("lease")
BUCKET = "shoal-leases"
TTL_S = 5.0
RENEW_S = 1.5
TRY_S = 0.5

assert RENEW_S * 2 < TTL_S, "one lost renewal must not cost the lease"


class Lease:
    """Held or not; whoever writes asks `held` first. Writes themselves are conditional on revisions."""

    def __init__(self, session: Session, name: str, holder: str, replicas: int = 1) -> None:
        self._bucket = Bucket(session, BUCKET, ttl_s=TTL_S, replicas=replicas)
        self._name = name
        self._holder = holder.encode()
        self._revision = 0
        self._until = 0.0
        self._acquired = asyncio.Event()
        self._lost = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether this process holds it now, by its own clock and on the safe side."""
        return time.monotonic() < self._until

    async def wait_held(self) -> None:
        """Returns when it is held."""
        await self._acquired.wait()

    async def wait_lost(self) -> None:
        """Returns when it is held no more, at the latest `RENEW_S` after `held` says so."""
        await self._lost.wait()

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[Lease]:
        """Tries for it, and renews it, while the block runs; gives it up at the end."""
        task = asyncio.create_task(self._keep(), name=f"lease-{self._name}")
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if self.held:
                with contextlib.suppress(Conflict, ApiError, BrokerTimeout):
                    await self._bucket.delete(self._name, expected=self._revision, timeout_s=1.0)

    async def _keep(self) -> None:
        ensured = False
        while True:
            self._note_loss()
            try:
                if not ensured:
                    await self._bucket.ensure()
                    ensured = True
                await self._renew()
            except (Conflict, ApiError, BrokerTimeout) as error:
                if isinstance(error, Conflict):
                    self._until = 0.0  # Somebody else wrote it: it is theirs.
                log.debug("lease not renewed", lease=self._name, error=str(error))
                self._revision = 0
            self._note_loss()
            await asyncio.sleep(RENEW_S if self.held else TRY_S)

    def _note_loss(self) -> None:
        if self._acquired.is_set() and not self.held:
            log.warning("lease lost", lease=self._name)
            self._acquired.clear()
            self._lost.set()

    async def _renew(self) -> None:
        if not self._revision:
            entry = await self._bucket.get(self._name)
            if entry is not None and entry.value != self._holder:
                return  # Somebody else's, until its time is up.
            # Free, or this replica's own from before a restart.
            self._revision = entry.revision if entry else 0
        started = time.monotonic()
        self._revision = await self._bucket.put(self._name, self._holder, expected=self._revision, timeout_s=1.0)
        self._until = started + TTL_S - 1.0
        if not self._acquired.is_set():
            log.info("lease acquired", lease=self._name)
            self._lost.clear()
            self._acquired.set()
