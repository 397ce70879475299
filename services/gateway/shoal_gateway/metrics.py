"""What the gateway counts; without a metrics provider counting is a no-op."""

from __future__ import annotations

from opentelemetry import metrics

from shoal_common.counters import Counter

METER = "shoal.gateway"

requests = Counter(METER, "shoal.gateway.requests", "{request}", "Requests that were answered with results")
items = Counter(METER, "shoal.gateway.items", "{item}", "Items of requests that were answered with results")
rejections = Counter(METER, "shoal.gateway.rejections", "{request}", "Requests that ended in an error, by reason")
units = Counter(METER, "shoal.gateway.units", "{unit}", "Units that were published")
turn_ms = metrics.get_meter(METER).create_histogram(
    "shoal.gateway.turn", "ms", "How long units that could not be published at once waited for their turn"
)
cancelled_units = Counter(METER, "shoal.gateway.cancelled_units", "{unit}", "Units that nobody waits for any more")
blob_bytes = Counter(METER, "shoal.gateway.blob_bytes", "By", "Bytes written to object storage and read from it")
