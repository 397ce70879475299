"""Deadlines are counted on the broker's clock, however far off this machine's is."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from shoal_common.broker_clock import BrokerClock

START_S = 1_700_000_000.0
"""The broker's clock when our monotonic one shows 0, in the stamps that these tests make."""


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(START_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


def ahead_s(clock: BrokerClock) -> float:
    """What it takes the broker's clock to be ahead of START_S."""
    return clock.now_s() - time.monotonic() - START_S


def test_the_wall_clock_counts_until_the_first_reply() -> None:
    assert abs(BrokerClock().now_s() - time.time()) < 0.01


def test_the_brokers_time_is_learnt_from_one_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = BrokerClock()
    clock.observe(100.0, 100.010, stamp(105.005))
    assert abs(ahead_s(clock) - 5.0) < 0.001
    monkeypatch.setattr(time, "time", lambda: 12.0)
    assert abs(ahead_s(clock) - 5.0) < 0.001, "a wall clock that is set changes nothing"


def test_a_slow_reply_does_not_spoil_a_quick_ones_bound() -> None:
    clock = BrokerClock()
    clock.observe(100.0, 100.001, stamp(105.0005))
    clock.observe(101.0, 103.0, stamp(107.9))
    assert abs(ahead_s(clock) - 5.0) < 0.001


def test_quicker_replies_make_it_better_and_old_ones_are_forgotten() -> None:
    clock = BrokerClock()
    clock.observe(100.0, 101.0, stamp(105.0))
    clock.observe(102.0, 102.002, stamp(107.001))
    assert abs(ahead_s(clock) - 5.0) < 0.001
    for n in range(100):  # The clocks drift apart by less than one reply tells.
        clock.observe(200.0 + n, 200.003 + n, stamp(205.0025 + n))
    assert abs(ahead_s(clock) - 5.001) < 0.0001


@pytest.mark.parametrize("by_s", [-3600.0, -5.0, 5.0])
def test_a_brokers_clock_that_is_set_is_followed_at_once(by_s: float) -> None:
    clock = BrokerClock()
    clock.observe(100.0, 100.001, stamp(105.0005))
    clock.observe(130.0, 130.004, stamp(135.002 + by_s))
    assert abs(ahead_s(clock) - 5.0 - by_s) < 0.001
