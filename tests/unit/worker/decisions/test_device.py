"""The device's model: who runs, for how long, and when a stream is free."""

from __future__ import annotations

import pytest

from shoal_worker.decisions.device import TRAVEL_S, Device


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
    assert device.runs_alone(1)
    assert device.finished(1, 0.010) == pytest.approx(10.0)
    assert not device.has_next
    assert device.runs_alone(2)
    assert device.finished(2, 0.040) == pytest.approx(30.0)


def test_a_batch_that_finds_the_device_idle_has_it_alone_until_it_ends() -> None:
    device = Device(2)
    device.sent(1, 10.0, 0.0, alone_ms=15.0)
    device.sent(2, 10.0, 0.005)
    assert device.runs_alone(1) and not device.runs_alone(2)
    assert device.free_in_ms(0.010) == pytest.approx(5.0)
    assert device.finished(1, 0.016, ended_s=0.015) == pytest.approx(15.0)
    assert device.runs_alone(2)  # It was the only one that waited.
    assert device.finished(2, 0.027, ended_s=0.025) == pytest.approx(10.0)
    assert device.total_busy_s(1.0) == pytest.approx(0.027)


def test_batches_that_wait_together_run_beside_one_another() -> None:
    device = Device(2)
    device.sent(1, 10.0, 0.0)
    device.sent(2, 10.0, 0.001)
    device.sent(3, 20.0, 0.002)
    assert device.has_next
    device.finished(1, 0.010)
    assert not device.runs_alone(2) and not device.runs_alone(3)
    assert device.free_in_ms(0.014) == pytest.approx(16.0)  # 10 ms of the whole are 20 ms of a half.
    device.sent(4, 5.0, 0.015)
    assert device.finished(2, 0.030) == pytest.approx(10.0)
    assert device.free_in_ms(0.030) == pytest.approx(10.0)
    assert device.finished(4, 0.040) == pytest.approx(5.0)
    assert device.finished(3, 0.050) == pytest.approx(20.0)


def test_a_batch_that_came_after_the_end_found_the_device_idle() -> None:
    device = Device(2)
    device.sent(1, 10.0, 0.0)
    device.sent(2, 10.0, 0.005)
    device.sent(3, 10.0, 0.0105)
    device.finished(1, 0.012, ended_s=0.010)  # 3 was on its way to the runtime when 1 ended.
    assert device.runs_alone(2) and not device.runs_alone(3)
    device.sent(4, 10.0, 0.013)
    device.finished(2, 0.020 + 2 * TRAVEL_S, ended_s=0.020)
    assert not device.runs_alone(3) and not device.runs_alone(4)


def test_one_that_ends_before_the_one_that_was_alone_ran_beside_it() -> None:
    device = Device(2)
    device.sent(1, 10.0, 0.0)
    device.sent(2, 10.0, 0.001)
    assert device.finished(2, 0.021) == pytest.approx(10.0)
    assert not device.runs_alone(1)
    assert device.finished(1, 0.030) == pytest.approx(15.0)


def test_an_overdue_batch_makes_a_stream_free_at_any_moment() -> None:
    device = Device(1)
    device.sent(1, 10.0, 0.0)
    assert device.free_in_ms(5.0) == 0.0
    assert not device.has_free_stream


def test_a_batch_may_be_predicted_anew() -> None:
    device = Device(1)
    device.sent(1, 10.0, 0.0)
    device.predicted(1, 20.0)
    assert device.free_in_ms(0.0) == pytest.approx(20.0)


def test_a_reset_forgets_batches_and_keeps_the_time() -> None:
    device = Device(1)
    device.sent(1, 10.0, 0.0)
    device.reset(0.5)
    assert device.has_free_stream
    assert device.total_busy_s(2.0) == pytest.approx(0.5)
