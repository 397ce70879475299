"""Tells workers which units nobody waits for any more: gathered while one message is on its way."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from shoal.work.v1 import work_pb2
from shoal_common import lanes, logs
from shoal_common.nats_session import BrokerTimeout, Session

log = logs.get("cancellations")
LEAST_REMEMBER_MS = 1000
MESSAGE_UNITS = 8192
BROKER_WAIT_S = 30.0


class Cancellations:
    """Owns the publishing of CancelledUnits; a request that ends early only leaves its ids here."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._units: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._some = asyncio.Event()

    def add(self, shard: int, unit_ids: Iterable[str], left_s: float) -> None:
        """Cancels units of a shard whose deadline is `left_s` away."""
        remember_ms = max(int(left_s * 1000), LEAST_REMEMBER_MS)
        self._units[shard].update(dict.fromkeys(unit_ids, remember_ms))
        self._some.set()

    async def run(self) -> None:
        """Publishes for ever; what the broker cannot take in time is left to the units' deadlines."""
        while True:
            await self._some.wait()
            self._some.clear()
            try:
                await self._session.wait_up(BROKER_WAIT_S)
            except BrokerTimeout:
                log.warning("cancelled units could not be told", units=sum(map(len, self._units.values())))
                self._units.clear()
                continue
            await self._publish()

    async def _publish(self) -> None:
        units, self._units = self._units, defaultdict(dict)
        for shard, remember_ms in units.items():
            ids = list(remember_ms)
            for start in range(0, len(ids), MESSAGE_UNITS):
                some = ids[start : start + MESSAGE_UNITS]
                message = work_pb2.CancelledUnits(
                    unit_ids=some, remember_ms=max(remember_ms[unit_id] for unit_id in some)
                )
                await self._session.send(lanes.cancel_subject(shard), message.SerializeToString())
