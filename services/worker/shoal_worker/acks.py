"""Acknowledgements to the broker: done, never again, and still at it."""

from __future__ import annotations

import asyncio
import time

from shoal_common import limits
from shoal_worker.decisions.unit import HeldUnit
from shoal_worker.held import Held
from shoal_worker.outbox import Outbox

ACK = b"+ACK"
TERM = b"+TERM"
IN_PROGRESS = b"+WPI"


class Acks:
    """Sends them through the outbox; one that is lost is made good when the unit is delivered again."""

    def __init__(self, outbox: Outbox, held: Held) -> None:
        self._outbox = outbox
        self._held = held

    def ack(self, ack_subject: str) -> None:
        """The message is done with."""
        self._outbox.put(ack_subject, ACK)

    def term(self, ack_subject: str) -> None:
        """The message is never to be delivered again."""
        self._outbox.put(ack_subject, TERM)

    def in_progress(self, unit: HeldUnit) -> None:
        """The message is worked on still: its ack_wait begins anew."""
        self._outbox.put(unit.ack_subject, IN_PROGRESS)

    async def keep(self) -> None:
        """Keeps the broker from delivering again what is in hand, for ever."""
        while True:
            await asyncio.sleep(limits.IN_PROGRESS_PERIOD_S)
            # A younger unit's first period is not over: most are done before it is.
            pulled_before_s = time.monotonic() - limits.IN_PROGRESS_PERIOD_S
            for unit in self._held:
                if unit.pulled_s <= pulled_before_s:
                    self.in_progress(unit)
