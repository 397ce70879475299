"""What a report says of the device."""

from __future__ import annotations

import pytest

from shoal_worker.decisions.meter import FULL_SPEED, Meter


def test_a_reading_covers_the_period_since_the_last() -> None:
    meter = Meter(0.0)
    meter.finished(predicted_ms=50.0, device_ms=100.0, tokens=400)
    reading = meter.read(0.1, 1.0)
    assert reading.busy_share == pytest.approx(0.1)
    assert reading.drain_ms_per_second == pytest.approx(500.0)
    assert reading.tokens_per_second == pytest.approx(400.0)
    idle = meter.read(0.1, 2.0)
    assert (idle.busy_share, idle.tokens_per_second) == (0.0, 0.0)
    assert idle.drain_ms_per_second == pytest.approx(500.0)  # The last that is known.


def test_before_the_first_batch_predictions_count_as_exact() -> None:
    assert Meter(0.0).read(0.0, 1.0).drain_ms_per_second == FULL_SPEED
