"""Keeps the queue as the state says: every lane has its consumers, and retired lanes are cleared."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from shoal_common import errors, lanes, limits, logs, queue_setup
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_registry.lane_drain import drain
from shoal_registry.retired_lanes import GRACE_S, RetiredLanes
from shoal_registry.state import State

log = logs.get("queue-keeper")
PERIOD_S = 10.0
CHECK_S = 1.0
"""How soon a change of the registered lanes is seen."""


class QueueKeeper:
    """The lease holder's rounds over the queue: each period, at once after a broker's restart, and when lanes
    change and when the grace of those that went is over."""

    def __init__(self, session: Session, state: State, replicas: int, may_write: Callable[[], bool]) -> None:
        self._session = session
        self._state = state
        self._replicas = replicas
        self._may_write = may_write
        self._retired = RetiredLanes()
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Asks for a round now."""
        self._wake.set()

    async def run(self) -> None:
        """Makes rounds for ever, while this replica holds the lease."""
        kept: set[str] = set()
        next_s = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._wake.wait()
            now_s, wanted = time.monotonic(), self._state.lane_tokens()
            is_due = self._wake.is_set() or wanted != kept or now_s >= next_s
            self._wake.clear()
            if not is_due or not self._may_write():
                continue
            next_s = now_s + PERIOD_S
            try:
                await self.round(now_s)
            except (ApiError, BrokerTimeout) as error:
                log.warning("the queue could not be kept in order", error=str(error))
                continue
            if kept - wanted:
                asyncio.get_running_loop().call_later(GRACE_S, self.wake)
            kept = wanted

    async def prepare(self, token: str) -> None:
        """Makes the consumers of a lane.

        Raises:
            CallError: UNAVAILABLE when the broker is away.
        """
        try:
            await queue_setup.ensure_consumers(self._session, token)
        except (ApiError, BrokerTimeout) as error:
            log.warning("a lane could not be made", lane=token, error=str(error))
            raise errors.unavailable("the broker did not make the lane; try again", 1.0, "BROKER_AWAY") from None

    async def round(self, now_s: float) -> None:
        """Makes what is missing, clears what is due.

        Raises:
            ApiError, BrokerTimeout: the broker refused or did not answer; the next round does the rest.
        """
        await queue_setup.ensure_streams(self._session, self._replicas)
        served, holding = await self._inventory()
        wanted = self._state.lane_tokens()
        for token in sorted(wanted - served):
            await queue_setup.ensure_consumers(self._session, token)
        for token in self._retired.due(wanted, served | holding, now_s):
            if await drain(self._session, token, lambda token=token: self._farewell(token)):
                self._state.retired.pop(token, None)
                log.info("a retired lane is cleared", lane=token)

    async def _inventory(self) -> tuple[set[str], set[str]]:
        """Tokens of lanes with all their consumers or some units, as the broker has them."""
        consumers: dict[str, int] = {}
        holding: set[str] = set()
        for shard in range(limits.SHARDS):
            stream = lanes.stream_name(shard)
            for name in await self._consumer_names(stream):
                token = name.rsplit("_", 1)[0]
                consumers[token] = consumers.get(token, 0) + 1
            info = await self._session.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
            holding |= {subject.split(".")[3] for subject in info["state"].get("subjects") or {}}
        whole = {token for token, count in consumers.items() if count == len(lanes.CLASSES)}
        return whole, holding | (consumers.keys() - whole)

    async def _consumer_names(self, stream: str) -> list[str]:
        names: list[str] = []
        while True:
            page = await self._session.api(f"CONSUMER.NAMES.{stream}", {"offset": len(names)})
            names += page.get("consumers") or []
            if not page.get("consumers") or len(names) >= page["total"]:
                return names

    def _farewell(self, token: str) -> errors.CallError:
        """What callers whose units wait on a retired lane are told."""
        name = self._state.retired.get(token)
        if name is not None and name in self._state.models:
            return errors.unavailable(
                f"the model {name!r} was given a new revision while this waited; send it again",
                0.1,
                "REVISION_REPLACED",
            )
        return errors.not_found("model", name or f"of lane {token}", self._state.names())
