"""Finds consumers that have lost sight of their queue, and makes them anew.

Seen on work queues after crashes: units lie in the stream, and the consumer knows of none, neither to be
delivered nor in flight, so that nobody ever pulls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal_common import logs, queue_setup, queue_survey
from shoal_common.nats_session import ApiError, Session
from shoal_common.queue_survey import Queue, QueueKey
from shoal_registry import metrics

log = logs.get("stuck-consumers")
SURE_AFTER_S = 3.0
"""Between the two checks that must see the same: what the broker counts may lag for a moment."""


class Suspicions:
    """Which queues looked stuck, with which unit at their head, since when. Pure, with the clock passed in."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[QueueKey, int], float] = {}

    def __len__(self) -> int:
        return len(self._since_s)

    def sure(self, heads: Mapping[QueueKey, int], now_s: float) -> list[QueueKey]:
        """Queues that are stuck, of those that look it now: by the sequence of the unit at their head.

        A unit that was at the head in both checks was there all the time between, and if no consumer knows of
        it at either, none ever will. A queue that moves shows another one.
        """
        self._since_s = {seen: self._since_s.get(seen, now_s) for seen in heads.items()}
        return [key for (key, _), since_s in self._since_s.items() if now_s - since_s >= SURE_AFTER_S]


class StuckConsumers:
    """Checks whenever it is given a survey."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._suspicions = Suspicions()

    async def check(self, queues: Iterable[Queue], now_s: float) -> bool:
        """Remakes the consumers that are surely stuck; whether some are only suspected, for another check to tell.

        Raises:
            ApiError, BrokerTimeout: the broker refused or did not answer.
        """
        heads: dict[QueueKey, int] = {}
        for queue in queues:
            if looks_stuck(queue) and (head := await queue_survey.head(self._session, queue.key)):
                heads[queue.key] = head.sequence
        sure = self._suspicions.sure(heads, now_s)
        for key in sure:
            await self._remake(key, heads[key])
        return len(self._suspicions) > len(sure)

    async def _remake(self, key: QueueKey, head: int) -> None:
        """Deletes a consumer and makes it anew: its first unit is then the oldest in the stream.

        Nothing is in flight, so nothing is delivered twice. If a worker pulls in this very moment, its unit
        is delivered again, and known by its id.
        """
        try:
            now = await queue_survey.consumer(self._session, key)
        except ApiError as error:
            if error.err_code != queue_setup.CONSUMER_NOT_FOUND:
                raise
            return  # Whoever meets that makes it.
        if now["num_pending"] or now["num_ack_pending"]:
            return
        await queue_setup.delete_consumer(self._session, *key)
        await queue_setup.ensure_consumers(self._session, key.lane)
        metrics.remade_consumers.add(1, {"class": key.work_class})
        log.warning(
            "a consumer that did not see its units was made anew",
            lane=key.lane,
            work_class=key.work_class,
            oldest_sequence=head,
        )


def looks_stuck(queue: Queue) -> bool:
    """Whether units are stored that the consumer, in the same moment or nearly, does not know of."""
    return queue.has_consumer and queue.stored_units > 0 and not queue.waiting_units and not queue.in_flight_units
