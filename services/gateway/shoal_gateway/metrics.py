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
turn_ms = _meter.create_histogram(
    "shoal.gateway.turn", "ms", "How long units that could not be published at once waited for their turn"
)
cancelled_units = _meter.create_counter(
    "shoal.gateway.cancelled_units", "{unit}", "Units that nobody waits for any more"
)
blob_bytes = _meter.create_counter("shoal.gateway.blob_bytes", "By", "Bytes written to object storage and read from it")
