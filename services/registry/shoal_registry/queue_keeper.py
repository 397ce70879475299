"""Keeps the queue as the state says: lanes have consumers that see their units, and retired lanes are cleared."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from shoal_common import errors, lanes, logs, queue_setup, queue_survey
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_common.queue_survey import Queue, QueueKey
from shoal_registry import metrics
from shoal_registry.lane_drain import drain
from shoal_registry.retired_lanes import GRACE_S, RetiredLanes
from shoal_registry.state import State
from shoal_registry.stuck_consumers import SURE_AFTER_S, StuckConsumers

log = logs.get("queue-keeper")
PERIOD_S = 10.0
CHECK_S = 1.0
"""How soon a change of the registered lanes is seen."""
DRAIN_AGAIN_S = 1.0
"""After a turn that left units on a retired lane."""


class QueueKeeper:
    """The lease holder's rounds over the queue: each period, at once after a broker's restart, and when lanes
    change and when the grace of those that went is over."""

    def __init__(self, session: Session, state: State, replicas: int, may_write: Callable[[], bool]) -> None:
        self._session = session
        self._state = state
        self._replicas = replicas
        self._may_write = may_write
        self._retired = RetiredLanes()
        self._stuck = StuckConsumers(session)
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
                self._wake_in(GRACE_S)
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
        queues = await queue_survey.survey(self._session)
        wanted = self._state.lane_tokens()
        for token in sorted(wanted - _whole(queues.values())):
            await queue_setup.ensure_consumers(self._session, token)
        if await self._stuck.check(queues.values(), now_s):
            self._wake_in(SURE_AFTER_S)
        for token in self._retired.due(wanted, {key.lane for key in queues}, now_s):
            if await drain(self._session, token, lambda token=token: self._farewell(token)):
                self._state.retired.pop(token, None)
                log.info("a retired lane is cleared", lane=token)
            else:
                self._wake_in(DRAIN_AGAIN_S)
        await self._measure(queues)

    async def _measure(self, queues: Mapping[QueueKey, Queue]) -> None:
        oldest = await queue_survey.oldest_waiting(self._session, queues.values())
        models = {model.lane.token: model.name for model in self._state.models.values()}
        now_s = self._session.clock.now_s()
        for key, queue in queues.items():
            about = {"model": models.get(key.lane, ""), "class": key.work_class}
            metrics.waiting_units.set(queue.waiting_units, about)
            age_s = now_s - oldest[key].published_s if key in oldest else 0.0
            metrics.oldest_waiting_ms.set(max(0.0, age_s) * 1e3, about)

    def _wake_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)

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


def _whole(queues: Iterable[Queue]) -> set[str]:
    """Tokens of lanes with all their consumers."""
    consumers = Counter(queue.key.lane for queue in queues if queue.has_consumer)
    return {token for token, count in consumers.items() if count == len(lanes.CLASSES)}
