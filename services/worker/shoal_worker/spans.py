"""The worker's part of a trace: spans of a sampled unit, made when its times are known."""

from __future__ import annotations

import time
from collections.abc import Iterable

from opentelemetry.trace import Tracer

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import telemetry
from shoal_worker.decisions.unit import HeldUnit


class Spans:
    """Emits spans under a unit's own parent; for an unsampled unit nobody calls it."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def computed(
        self, unit: HeldUnit, published_unix_ns: int, tokenize: sidecar_pb2.Span, batch: sidecar_pb2.BatchDone
    ) -> None:
        """From publish to the end of its batch: queue, tokenize, wait, and what the sidecar tells of the batch."""
        pulled_ns = _unix_ns(unit.pulled_s)
        spans = [("queue", published_unix_ns, pulled_ns)]
        if tokenize.end_unix_ns:
            spans.append((tokenize.name or "tokenize", tokenize.start_unix_ns, tokenize.end_unix_ns))
        spans.append(("wait", tokenize.end_unix_ns or pulled_ns, batch.started_unix_ns))
        spans.extend((span.name, span.start_unix_ns, span.end_unix_ns) for span in batch.spans)
        self._emit(unit, spans)

    def confirmed(self, unit: HeldUnit) -> None:
        """From the result's first publish to its confirmation."""
        self._emit(unit, [("reply", _unix_ns(unit.answered_s), time.time_ns())])

    def _emit(self, unit: HeldUnit, spans: Iterable[tuple[str, int, int]]) -> None:
        context = telemetry.parent_context(unit.traceparent)
        for name, start_ns, end_ns in spans:
            span = self._tracer.start_span(name, context=context, start_time=start_ns)
            span.set_attribute("shoal.unit", unit.id)
            span.end(end_time=max(start_ns, end_ns))


def _unix_ns(monotonic_s: float) -> int:
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)
