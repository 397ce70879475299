"""What the device got done over a period: busy share, drained cost, tokens."""

from __future__ import annotations

from dataclasses import dataclass

FULL_SPEED = 1_000.0
"""Predicted milliseconds finished per second of device time, when predictions are exact."""


@dataclass(frozen=True)
class Reading:
    """Over the last period; the drain rate is of the last period in which the device was busy."""

    busy_share: float
    drain_ms_per_second: float
    tokens_per_second: float


class Meter:
    """Adds up batches between readings."""

    def __init__(self, now_s: float, busy_s: float = 0.0) -> None:
        self._at_s = now_s
        self._busy_s = busy_s
        self._predicted_ms = 0.0
        self._device_ms = 0.0
        self._tokens = 0
        self._drain = FULL_SPEED

    def finished(self, predicted_ms: float, device_ms: float, tokens: int) -> None:
        """A batch was finished."""
        self._predicted_ms += predicted_ms
        self._device_ms += device_ms
        self._tokens += tokens

    def read(self, busy_s: float, now_s: float) -> Reading:
        """The period since the last reading, and begins a new one; `busy_s` is the device's running total."""
        period_s = max(now_s - self._at_s, 1e-3)
        if self._device_ms > 0:
            self._drain = FULL_SPEED * self._predicted_ms / self._device_ms
        reading = Reading(
            busy_share=min(1.0, (busy_s - self._busy_s) / period_s),
            drain_ms_per_second=self._drain,
            tokens_per_second=self._tokens / period_s,
        )
        self._at_s, self._busy_s = now_s, busy_s
        self._predicted_ms = self._device_ms = 0.0
        self._tokens = 0
        return reading
