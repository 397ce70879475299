"""This replica's copy of the bucket: kept fresh, written only by the lease's holder, told to watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.registry.v1 import registry_pb2
from shoal_common import errors, logs, registry_state
from shoal_common.bucket import Bucket, Conflict
from shoal_common.nats_session import ApiError, BrokerTimeout
from shoal_common.registry_state import ALIAS, MODEL
from shoal_registry.state import SEED, State
from shoal_registry.watchers import Watchers

log = logs.get("replica")
POLL_S = 1.0
FIRST_POLL_S = 0.1


class Replica:
    """State, its bucket and its watchers. Every write is conditional on the key's revision known here.

    The writing methods raise CallError: UNAVAILABLE when this replica does not hold the lease, when
    somebody else wrote meanwhile, or when the broker does not answer (it may still have been written).
    """

    def __init__(self, bucket: Bucket, state: State, watchers: Watchers, may_write: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._may_write = may_write
        self._lock = asyncio.Lock()
        self.state = state
        self.watchers = watchers
        self.loaded = asyncio.Event()
        """Set once the bucket was read."""

    async def follow(self) -> None:
        """Rereads the bucket whenever somebody else wrote it, for ever."""
        while True:
            try:
                if not self.loaded.is_set():
                    await self._bucket.ensure()
                    await self.refresh()
                elif await self._bucket.last_revision() != self.state.revision:
                    await self.refresh()
            except (ApiError, BrokerTimeout) as error:
                log.debug("the bucket cannot be read now", error=str(error))
            await asyncio.sleep(POLL_S if self.loaded.is_set() else FIRST_POLL_S)

    async def refresh(self) -> None:
        """Rereads the bucket and tells watchers what changed.

        Raises:
            BrokerTimeout, ApiError: it could not be read.
        """
        async with self._lock:
            await self._load()

    def check_writable(self) -> None:
        """Raises CallError (UNAVAILABLE) while this replica may not write."""
        if not self._may_write():
            raise errors.unavailable("another registry holds the lease", 1.0, "NOT_LEADER")

    async def put_model(self, model: registry_pb2.Model) -> None:
        """Writes a model under its name."""
        async with self._lock:
            revision = await self._write(MODEL, model.name, model.SerializeToString(deterministic=True))
            await self._settle(revision, lambda: self.watchers.publish([self.state.put_model(model, revision)]))

    async def remove_model(self, name: str) -> None:
        """Deletes a model."""
        async with self._lock:
            revision = await self._write(MODEL, name, None)
            await self._settle(revision, lambda: self.watchers.publish([self.state.remove_model(name, revision)]))

    async def put_alias(self, alias: registry_pb2.Alias) -> None:
        """Writes an alias under its name."""
        async with self._lock:
            revision = await self._write(ALIAS, alias.name, alias.SerializeToString(deterministic=True))
            await self._settle(revision, lambda: self.watchers.publish([self.state.put_alias(alias, revision)]))

    async def remove_alias(self, name: str) -> None:
        """Deletes an alias."""
        async with self._lock:
            revision = await self._write(ALIAS, name, None)
            await self._settle(revision, lambda: self.watchers.publish([self.state.remove_alias(name, revision)]))

    async def put_seed(self, name: str, digest: str) -> None:
        """Writes which revision was registered at start."""
        async with self._lock:
            revision = await self._write(SEED, name, digest.encode())
            await self._settle(revision, lambda: self.state.put_seed(name, digest, revision))

    async def _write(self, kind: str, name: str, value: bytes | None) -> int:
        """Puts a key, or deletes it without a value; returns the new revision."""
        self.check_writable()
        key, expected = registry_state.key(kind, name), self.state.revision_of(kind, name)
        try:
            if value is None:
                return await self._bucket.delete(key, expected=expected)
            return await self._bucket.put(key, value, expected=expected)
        except Conflict:
            log.warning("somebody else wrote the bucket", kind=kind, name=name)
            raise errors.unavailable("the registry's state changed meanwhile; try again", POLL_S, "CONFLICT") from None
        except (ApiError, BrokerTimeout) as error:
            log.warning("a write failed", kind=kind, name=name, error=str(error))
            raise errors.unavailable("the broker did not take the write; try again", 1.0, "BROKER_AWAY") from None

    async def _settle(self, revision: int, apply: Callable[[], None]) -> None:
        """Applies an own write; one that follows writes not known here is reread with them."""
        if revision == self.state.revision + 1:
            apply()
            return
        try:
            await self._load()
        except (ApiError, BrokerTimeout) as error:
            log.warning("a write stands, but cannot be reread yet", error=str(error))

    async def _load(self) -> None:
        self.watchers.publish(self.state.load(await self._bucket.read()))
        self.loaded.set()
