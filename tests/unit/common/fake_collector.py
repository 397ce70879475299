"""An OTLP collector in the test's own process: what services export, by name."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent import futures
from types import TracebackType

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2


class FakeCollector(metrics_service_pb2_grpc.MetricsServiceServicer, trace_service_pb2_grpc.TraceServiceServicer):
    """Use as a context; `env` makes a service export to it, several times a second."""

    def __init__(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, self._server)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }
        self.sums: dict[tuple[str, str], float] = {}
        """The newest value of each counter, by its name and its attribute `outcome` or `reason`."""
        self.gauges: dict[tuple[str, str], float] = {}
        """The newest value of each gauge, by its name and its attributes as `key=value,...`, sorted."""
        self.histograms: dict[tuple[str, str], tuple[int, float]] = {}
        """The newest count and sum of each histogram, by its name and its attributes as of a gauge."""
        self.spans: list[trace_pb2.Span] = []

    def __enter__(self) -> FakeCollector:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.stop(0).wait()

    def Export(self, request, context: grpc.ServicerContext):
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            self.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()
        for resource in request.resource_metrics:
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                for point in metric.sum.data_points:
                    label = ",".join(attribute.value.string_value for attribute in point.attributes)
                    self.sums[metric.name, label] = point.as_int or point.as_double
                for point in metric.gauge.data_points:
                    self.gauges[metric.name, _pairs(point.attributes)] = point.as_int or point.as_double
                for point in metric.histogram.data_points:
                    self.histograms[metric.name, _pairs(point.attributes)] = (point.count, point.sum)
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _pairs(attributes: Iterable[KeyValue]) -> str:
    return ",".join(sorted(f"{each.key}={each.value.string_value}" for each in attributes))
