"""The worker's metrics, by name. Nothing is recorded while no provider is set."""

from __future__ import annotations

from opentelemetry import metrics

from shoal_common.counters import Counter

METER = "shoal"
_meter = metrics.get_meter(METER)

queue_age_ms = _meter.create_histogram("shoal.worker.queue_age", "ms", "Age of a unit when its batch was sent")
batch_tokens = _meter.create_histogram("shoal.worker.batch_tokens", "{token}", "Tokens of a batch")
batch_cost_ratio = _meter.create_histogram("shoal.worker.batch_cost_ratio", "1", "Actual over predicted device time")
cost_error = _meter.create_histogram(
    "shoal.worker.cost_error",
    "1",
    "Predicted less actual device time of a batch, over actual, without its sign",
    explicit_bucket_boundaries_advisory=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0),
)
busy_share = _meter.create_gauge("shoal.worker.busy_share", "1", "Share of the last period with a batch running")
tokens_per_second = _meter.create_gauge("shoal.worker.tokens_per_second", "{token}/s", "Tokens computed")
put_backs = Counter(METER, "shoal.worker.put_backs", "{unit}", "Units that changed hands, by kind")
units = Counter(METER, "shoal.worker.units", "{unit}", "Units let go, by outcome")
