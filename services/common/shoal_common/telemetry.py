"""What leaves a process to be looked at: sampled spans, by OTLP or to a file, and metrics, by OTLP."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Span, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shoal_common import limits

TRACEPARENT = "traceparent"
_INSTANCE = secrets.token_hex(8)
"""Of this process."""
OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
METRICS_PERIOD_MS = 10_000
_propagator = TraceContextTextMapPropagator()
_unsent: list[Callable[[int], bool]] = []
"""What sends the spans and metrics that wait for their next export."""


class TraceSettings(Protocol):
    """The settings that tracing needs."""

    @property
    def trace_ratio(self) -> float: ...
    @property
    def trace_file(self) -> str: ...


class FileExporter(SpanExporter):
    """Appends each span as a JSON line: the embedded mesh's traces. Many processes share one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = "".join(json.dumps(_as_dict(span)) + "\n" for span in spans)
        with self._lock, self._path.open("a") as file:
            file.write(lines)
            file.flush()
            if os.fstat(file.fileno()).st_size > limits.TRACE_FILE_BYTES:
                self._move_aside(file)
        return SpanExportResult.SUCCESS

    def _move_aside(self, file: TextIO) -> None:
        """Renames the file, unless another process has: its successor would take the old file's place."""
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(file.fileno())):
                self._path.replace(self._path.with_name(self._path.name + ".1"))


def configure_metrics(service: str) -> None:
    """Sends the service's metrics by OTLP where OTEL_EXPORTER_OTLP_ENDPOINT is set; else nothing is counted."""
    if not os.environ.get(OTLP_ENDPOINT):
        return
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    period_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", METRICS_PERIOD_MS))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=period_ms)
    meters = MeterProvider([reader], _resource(service))
    metrics.set_meter_provider(meters)
    _unsent.append(meters.force_flush)


def configure(service: str, settings: TraceSettings) -> trace.Tracer:
    """The service's tracer: OTLP where OTEL_EXPORTER_OTLP_ENDPOINT is set, else the trace file, else nothing.

    Its metrics are configured too.
    """
    configure_metrics(service)
    exporter: SpanExporter | None = None
    if os.environ.get(OTLP_ENDPOINT):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    elif settings.trace_file:
        exporter = FileExporter(Path(settings.trace_file))
    if exporter is None:
        return trace.NoOpTracer()
    provider = TracerProvider(
        # Who begins a trace decides by trace_ratio before making a span: even an unsampled one costs 8 µs.
        sampler=ParentBased(ALWAYS_ON),
        resource=_resource(service),
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    _unsent.append(provider.force_flush)
    return provider.get_tracer("shoal")


def flush(timeout_ms: int = 1000) -> None:
    """Sends what is not sent yet: a process calls it at its end."""
    for send in _unsent:
        send(timeout_ms)


def parent_context(traceparent: str | None) -> trace.Context | None:  # pyright: ignore[reportPrivateImportUsage]
    """The context of a W3C traceparent, or None without one."""
    if not traceparent:
        return None
    return _propagator.extract({TRACEPARENT: traceparent})


def traceparent(span: Span) -> str | None:
    """A recorded span's W3C traceparent; None for one that is not sampled."""
    context: SpanContext = span.get_span_context()
    if not context.trace_flags & TraceFlags.SAMPLED:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def _resource(service: str) -> Resource:
    # Two workers are one service: without an instance their metrics would overwrite each other.
    return Resource.create({"service.name": f"shoal-{service}", "service.instance.id": _INSTANCE})


def _as_dict(span: ReadableSpan) -> dict[str, object]:
    context = span.context
    return {
        "trace_id": f"{context.trace_id:032x}" if context else "",
        "span_id": f"{context.span_id:016x}" if context else "",
        "parent_id": f"{span.parent.span_id:016x}" if span.parent else "",
        "service": span.resource.attributes.get("service.name"),
        "name": span.name,
        "start_unix_ns": span.start_time,
        "end_unix_ns": span.end_time,
        "attributes": dict(span.attributes or {}),
    }
