"""Traces: nothing for what is not sampled, one span a stage for what is, under the caller's trace."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shoal_common import errors, limits
from shoal_gateway.traces import UNTRACED, Traces

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def recording() -> tuple[trace.Tracer, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def test_unsampled_requests_make_no_spans() -> None:
    tracer, exporter = recording()
    assert Traces(tracer, 0.0).begin("Encode", "id", None) is UNTRACED
    assert Traces(tracer, 1.0).begin("Encode", "id", PARENT[:-2] + "00") is UNTRACED
    assert Traces(trace.NoOpTracer(), 1.0).begin("Encode", "id", None) is UNTRACED
    assert exporter.get_finished_spans() == ()


def test_stages_are_children_of_the_request() -> None:
    tracer, exporter = recording()
    spans = Traces(tracer, 0.0).begin("Encode", "id", PARENT)
    for stage in ("check", "publish", "wait"):
        spans.stage(stage)
    assert spans.traceparent and spans.traceparent.split("-")[1] == PARENT.split("-")[1]
    spans.end(errors.deadline_exceeded("late"))
    *stages, root = exporter.get_finished_spans()
    assert [span.name for span in stages] == ["check", "publish", "wait"]
    assert root.name == "Encode" and root.status.description == "DEADLINE_EXCEEDED"
    assert root.context and all(s.parent and s.parent.span_id == root.context.span_id for s in stages)
    assert root.parent and f"{root.parent.span_id:016x}" == PARENT.split("-")[2]


def test_a_malformed_parent_is_none() -> None:
    tracer, _ = recording()
    assert Traces(tracer, 0.0).begin("Encode", "id", "00-zz-01") is UNTRACED


def test_the_callers_trace_goes_on_though_this_process_records_nothing() -> None:
    spans = Traces(trace.NoOpTracer(), 0.0).begin("Encode", "id", PARENT)
    assert spans.traceparent == PARENT


def test_callers_cannot_have_everything_traced() -> None:
    tracer, _ = recording()
    now_s = 7.0
    traces = Traces(tracer, 0.0, lambda: now_s)

    def sampled(count: int) -> int:
        return sum(traces.begin("Encode", "id", PARENT) is not UNTRACED for _ in range(count))

    assert sampled(2 * limits.CALLERS_TRACES_PER_S) == limits.CALLERS_TRACES_PER_S
    now_s += 1.0
    assert sampled(3) == 3
