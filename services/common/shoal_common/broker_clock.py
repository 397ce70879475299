"""The broker's clock: deadlines are counted on it, so that machines with different clocks agree."""

from __future__ import annotations

import math
import time
from datetime import datetime

SLACK = 1.05
"""How much less an estimate is trusted with each reply after it: clocks drift."""


class BrokerClock:
    """Learns from the `ts` of JetStream API replies how far the broker's clock is ahead of our monotonic one.

    This machine's wall clock counts only until the first reply: it may be off, and it may be set.
    """

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()
        self._error_s = math.inf

    def observe(self, sent_s: float, received_s: float, broker_ts: str) -> None:
        """One reply: when it was asked for and came (time.monotonic()), and the broker's RFC 3339 time."""
        # The broker looked at its clock at some moment between the two.
        error_s = (received_s - sent_s) / 2
        ahead_s = datetime.fromisoformat(broker_ts).timestamp() - (sent_s + received_s) / 2
        self._error_s *= SLACK
        was_set = abs(ahead_s - self._ahead_s) > error_s + self._error_s
        if error_s <= self._error_s or was_set:
            self._ahead_s, self._error_s = ahead_s, error_s

    def now_s(self) -> float:
        """Seconds since 1970 on the broker's clock."""
        return time.monotonic() + self._ahead_s
