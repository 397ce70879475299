"""The broker's clock: deadlines are counted on it, so that machines with different clocks agree."""

from __future__ import annotations

import time
from datetime import datetime


class BrokerClock:
    """Learns how far this machine's clock is off the broker's from the `ts` of JetStream API replies."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._round_trip_s = float("inf")

    def observe(self, sent_s: float, received_s: float, broker_ts: str) -> None:
        """One reply: when it was asked for and came (time.time()), and the broker's RFC 3339 time."""
        round_trip = received_s - sent_s
        # A quicker reply bounds the offset tighter; an old bound slackens, since clocks drift.
        self._round_trip_s *= 1.05
        if round_trip <= self._round_trip_s:
            broker_s = datetime.fromisoformat(_microseconds(broker_ts)).timestamp()
            self._round_trip_s = round_trip
            self._offset_s = broker_s - (sent_s + received_s) / 2

    def now_s(self) -> float:
        """Seconds since 1970 on the broker's clock."""
        return time.time() + self._offset_s


def _microseconds(timestamp: str) -> str:
    """RFC 3339 with nanoseconds, as Python reads it: at most six digits of a second."""
    head, _, rest = timestamp.rstrip("Z").partition(".")
    return f"{head}.{(rest or '0')[:6]:0<6}+00:00"
