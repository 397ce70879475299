"""What a replica does when the lease becomes its own: it reads, makes the queue, and registers the first models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from shoal_common import errors, logs
from shoal_common.lease import Lease
from shoal_common.nats_session import ApiError, BrokerTimeout
from shoal_registry.models import Models
from shoal_registry.queue_keeper import QueueKeeper
from shoal_registry.replica import Replica
from shoal_registry.seeding import seed

log = logs.get("leadership")
RETRY_S = 0.5


class Leadership:
    """Whether this replica may write: it holds the lease, and has taken over since it got it."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._taken_over = False

    def may_write(self) -> bool:
        """Whether a write may be tried now."""
        return self._taken_over and self._lease.held

    async def run(self, replica: Replica, keeper: QueueKeeper, models: Models, texts: Mapping[str, str]) -> None:
        """Takes over each time the lease is acquired, for ever."""
        while True:
            await self._lease.wait_held()
            try:
                await replica.refresh()
                await self._lead(replica, keeper, models, texts)
            except (ApiError, BrokerTimeout, errors.CallError) as error:
                log.warning("cannot take over yet", error=str(error))
                await asyncio.sleep(RETRY_S)
            finally:
                self._taken_over = False

    async def _lead(self, replica: Replica, keeper: QueueKeeper, models: Models, texts: Mapping[str, str]) -> None:
        await keeper.round(asyncio.get_running_loop().time())
        self._taken_over = True
        await seed(texts, models, replica)
        log.info("this replica writes", revision=replica.state.revision, models=len(replica.state.models))
        await self._lease.wait_lost()
