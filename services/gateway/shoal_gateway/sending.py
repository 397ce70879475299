"""One request's units on their way to the queue: published together, or in pieces as their turns come."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shoal.work.v1 import work_pb2
from shoal_common.nats_session import Session
from shoal_gateway import metrics, publishing
from shoal_gateway.pacing import Turns
from shoal_gateway.results import Waiting
from shoal_gateway.traces import Untraced

QUEUE_ANSWERS_S = 1.0
"""A queue that has not stored a unit after this time is away, rather than the deadline too short."""


class Sending:
    """Publishes a request's units, in order."""

    def __init__(self, session: Session, waiting: Waiting, units: Sequence[work_pb2.Unit], turns: Turns | None) -> None:
        self._session = session
        self._waiting = waiting
        self._units = units
        self._turns = turns
        self._sent = 0
        self._asked_s: float | None = None
        """When the broker was asked for what it has not stored yet."""

    async def run(self, deadline_s: float, spans: Untraced) -> None:
        """Returns once the broker has stored every unit, or the request has ended meanwhile.

        Raises:
            CallError, TimeoutError: as `publishing.publish`.
        """
        while self._sent < len(self._units) and not self._waiting.done.done():
            ready = len(self._units)
            if self._turns is not None:
                ready = self._turns.ready
                if ready == self._sent:
                    spans.stage("turn")
                    await self._turns.after(self._sent)
                    continue
            spans.stage("publish")
            some, self._sent = self._units[self._sent : ready], ready
            await self._publish(some, deadline_s, spans)

    async def _publish(self, units: Sequence[work_pb2.Unit], deadline_s: float, spans: Untraced) -> None:
        self._asked_s = time.monotonic()
        left_s = deadline_s - self._asked_s
        for unit in units:
            unit.remaining_ms = max(1, int(left_s * 1000))
        await publishing.publish(self._session, self._waiting.lane, units, left_s, spans.traceparent)
        self._asked_s = None
        metrics.units.add(len(units))

    @property
    def is_queue_away(self) -> bool:
        """Whether the broker, and not the deadline, is why a unit is not stored."""
        silent_s = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        return not self._session.is_up or silent_s >= QUEUE_ANSWERS_S

    def unanswered(self) -> list[str]:
        """Ids of the units that may lie in the queue and have no answer."""
        return [unit.id for unit in self._units[: self._sent] if self._waiting.answer.is_open(unit.id)]
