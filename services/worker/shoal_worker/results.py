"""Sends results to the gateways until they are confirmed; nothing waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.nats_session import Session
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.replies import Reply, pack
from shoal_worker.stowing import Stowing, is_needed


class Results:
    """Calls back for each unit once all parts of its result are confirmed, or given up.

    `settled(units)` is called with `unit.orphaned` set where nobody confirmed through a whole schedule or
    until the deadline; `silent(reply_subject)` before it where it was the schedule.
    """

    def __init__(
        self,
        session: Session,
        group: asyncio.TaskGroup,
        settled: Callable[[list[HeldUnit]], None],
        silent: Callable[[str], None],
        stowing: Stowing,
    ) -> None:
        self._stowing = stowing
        self._session = session
        self._group = group
        self._settled = settled
        self._silent = silent
        self._in_flight = 0

    @property
    def is_idle(self) -> bool:
        """Whether every result was settled."""
        return not self._in_flight

    def send(self, results: Iterable[tuple[HeldUnit, work_pb2.UnitResult]]) -> None:
        """Sends what units gave; what is too large for a message by way of object storage."""
        small = []
        for unit, result in results:
            if is_needed(result):
                unit.stage = Stage.ANSWERED
                self._in_flight += 1
                self._group.create_task(self._stow(unit, result))
            else:
                small.append((unit, result))
        self._send(small)

    async def _stow(self, unit: HeldUnit, result: work_pb2.UnitResult) -> None:
        try:
            await self._stowing.stow(result)
        finally:
            self._in_flight -= 1
        self._send([(unit, result)])

    def _send(self, results: Iterable[tuple[HeldUnit, work_pb2.UnitResult]]) -> None:
        replies = pack(results, limits.RESULT_MESSAGE_BYTES)
        for reply in replies:
            for unit in reply.units:
                unit.stage = Stage.ANSWERED
                unit.unconfirmed += 1
        for reply in replies:
            self._in_flight += 1
            self._group.create_task(self._deliver(reply))

    async def _deliver(self, reply: Reply) -> None:
        try:
            confirmed = await self._confirmed(reply)
        finally:
            self._in_flight -= 1
        done = []
        for unit in reply.units:
            unit.orphaned = unit.orphaned or not confirmed
            unit.unconfirmed -= 1
            if not unit.unconfirmed:
                done.append(unit)
        self._settled(done)

    async def _confirmed(self, reply: Reply) -> bool:
        payload = reply.batch.SerializeToString()
        # A result that is late is sent once all the same.
        deadline_s = max(time.monotonic() + limits.RESULT_RETRY_S[0], *(unit.deadline_s for unit in reply.units))
        timeout_s = deadline_s - time.monotonic()
        confirmed = await self._session.confirmed(reply.subject, payload, limits.RESULT_RETRY_S, timeout_s)
        if not confirmed and time.monotonic() < deadline_s:
            self._silent(reply.subject)
        return confirmed
