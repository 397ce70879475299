"""The device's model: who runs, for how long, and when a stream is free."""

from __future__ import annotations

import pytest

from shoal_worker.decisions.device import Device


def test_an_idle_device_is_free() -> None:
    device = Device(2)
    assert device.has_free_stream
    assert device.free_in_ms(0.0) == 0.0


def test_one_stream_runs_in_order() -> None:
    device = Device(1)
    device.sent(1, 10.0, 0.0)
    device.sent(2, 20.0, 0.0)
    assert not device.has_free_stream
    assert device.has_next
    assert device.free_in_ms(0.004) == pytest.approx(6.0)
    assert device.finished(1, 0.010) == pytest.approx(10.0)
    assert not device.has_next
    assert device.finished(2, 0.040) == pytest.approx(30.0)


def test_streams_share_the_device() -> None:
    device = Device(2)
    device.sent(1, 10.0, 0.0)
    device.sent(2, 10.0, 0.010)
    assert device.finished(1, 0.020) == pytest.approx(15.0)  # 10 ms alone, then half of 10 ms.
    assert device.finished(2, 0.030) == pytest.approx(15.0)
    assert device.total_busy_s(1.0) == pytest.approx(0.030)


def test_free_in_counts_the_share() -> None:
    device = Device(2)
    device.sent(1, 10.0, 0.0)
    device.sent(2, 30.0, 0.0)
    assert device.free_in_ms(0.0) == pytest.approx(20.0)


def test_an_overdue_batch_makes_a_stream_free_at_any_moment() -> None:
    device = Device(1)
    device.sent(1, 10.0, 0.0)
    assert device.free_in_ms(5.0) == 0.0
    assert not device.has_free_stream


def test_a_reset_forgets_batches_and_keeps_the_time() -> None:
    device = Device(1)
    device.sent(1, 10.0, 0.0)
    device.reset(0.5)
    assert device.has_free_stream
    assert device.total_busy_s(2.0) == pytest.approx(0.5)
