"""Deadlines are counted on the broker's clock, however far off this machine's is."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from shoal_common.broker_clock import BrokerClock


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


def test_an_offset_is_learnt_from_one_reply() -> None:
    clock = BrokerClock()
    clock.observe(1000.0, 1000.010, stamp(1005.005))
    assert abs(clock.now_s() - time.time() - 5.0) < 0.001


def test_a_slow_reply_does_not_spoil_a_quick_ones_bound() -> None:
    clock = BrokerClock()
    clock.observe(1000.0, 1000.001, stamp(1005.0005))
    clock.observe(1001.0, 1003.0, stamp(1008.0))
    assert abs(clock.now_s() - time.time() - 5.0) < 0.001
