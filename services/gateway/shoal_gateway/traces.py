"""A request's spans: one for it and one for each stage; a request that is not sampled has none and costs nothing."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable

from opentelemetry import trace

from shoal_common import limits, telemetry
from shoal_common.errors import CallError

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})")


def reason(error: BaseException) -> str:
    """The stable name of what ended a request, for spans and metrics."""
    if isinstance(error, CallError):
        return error.reason
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "INTERNAL"


class Untraced:
    """A request that is not sampled."""

    traceparent: str | None = None
    """What units carry as their traceparent header."""

    def stage(self, name: str) -> None:
        """Ends the stage before and begins one."""

    def end(self, error: BaseException | None = None) -> None:
        """Ends the request's span."""


UNTRACED = Untraced()


class Traced(Untraced):
    """A sampled request: its span and the span of the stage that it is in."""

    def __init__(self, tracer: trace.Tracer, name: str, request_id: str, parent: str | None) -> None:
        self._tracer = tracer
        self._span = tracer.start_span(
            name, telemetry.parent_context(parent), trace.SpanKind.SERVER, {"shoal.request_id": request_id}
        )
        self._inside = trace.set_span_in_context(self._span)
        self._stage: trace.Span | None = None
        self.traceparent = telemetry.traceparent(self._span)

    def stage(self, name: str) -> None:
        if self._stage is not None:
            self._stage.end()
        self._stage = self._tracer.start_span(name, self._inside)

    def end(self, error: BaseException | None = None) -> None:
        if self._stage is not None:
            self._stage.end()
        if error is not None:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, reason(error)))
        self._span.end()


class Traces:
    """Decides which requests are traced: so many a second of those whose caller's are, and a share of the others."""

    def __init__(self, tracer: trace.Tracer, ratio: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._tracer = tracer
        self._ratio = 0.0 if isinstance(tracer, trace.NoOpTracer) else ratio
        self._clock_s = clock_s
        self._second = 0
        self._callers = 0

    def begin(self, name: str, request_id: str, parent: str | None) -> Untraced:
        """The spans of a request; `parent` is the caller's W3C traceparent."""
        # Decided before a span is made: even one that is not sampled costs 8 µs.
        if parent is not None and (match := _TRACEPARENT.fullmatch(parent)):
            sampled = bool(int(match["flags"], 16) & 1) and self._may_follow()
        else:
            sampled = random.random() < self._ratio  # noqa: S311 - a coin for statistics
        return Traced(self._tracer, name, request_id, parent) if sampled else UNTRACED

    def _may_follow(self) -> bool:
        """Whether one more caller's trace is followed in this second: a caller's flag must not cost all others."""
        second = int(self._clock_s())
        if second != self._second:
            self._second, self._callers = second, 0
        self._callers += 1
        return self._callers <= limits.CALLERS_TRACES_PER_S
