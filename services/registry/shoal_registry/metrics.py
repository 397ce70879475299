"""What the registry tells of the queue; without a metrics provider it tells nobody."""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("shoal.registry")

remade_consumers = _meter.create_counter(
    "shoal.registry.remade_consumers", "{consumer}", "Consumers that did not see their units and were made anew"
)
waiting_units = _meter.create_gauge("shoal.queue.waiting_units", "{unit}", "Units that no worker has pulled, by model")
oldest_waiting_ms = _meter.create_gauge(
    "shoal.queue.oldest_waiting", "ms", "Age of the oldest unit that no worker has pulled, by model; 0 without one"
)
