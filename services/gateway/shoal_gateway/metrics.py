"""What the gateway counts; without a metrics provider counting is a no-op."""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("shoal.gateway")

requests = _meter.create_counter("shoal.gateway.requests", "{request}", "Requests that were answered with results")
items = _meter.create_counter("shoal.gateway.items", "{item}", "Items of requests that were answered with results")
rejections = _meter.create_counter(
    "shoal.gateway.rejections", "{request}", "Requests that ended in an error, by reason"
)
units = _meter.create_counter("shoal.gateway.units", "{unit}", "Units that were published")
cancelled_units = _meter.create_counter(
    "shoal.gateway.cancelled_units", "{unit}", "Units that nobody waits for any more"
)
