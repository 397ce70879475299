"""Counters that cost a dictionary's entry: OpenTelemetry's own take some 9 µs a call, and requests count several."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation


class Counter:
    """Sums by attributes, which OpenTelemetry reads when it exports. Added to by one thread only."""

    def __init__(self, meter: str, name: str, unit: str, description: str) -> None:
        self._sums: dict[tuple[tuple[str, str], ...], int] = {}
        metrics.get_meter(meter).create_observable_counter(name, [self._observe], unit, description)

    def add(self, amount: int, **attributes: str) -> None:
        """Counts on."""
        key = tuple(attributes.items())
        self._sums[key] = self._sums.get(key, 0) + amount

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        # Exporters read on threads of their own: the copy is made in one step.
        return [Observation(amount, dict(key)) for key, amount in list(self._sums.items())]
