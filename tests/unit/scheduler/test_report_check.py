"""A report that could poison the sums is refused by field."""

from __future__ import annotations

import math

import pytest

from shoal.scheduler.v1 import scheduler_pb2
from shoal_scheduler.report_check import LANES, violations
from tests.unit.scheduler.reports import lane, report


def test_a_good_report_is_taken():
    assert violations(report("w0", lane("a", backlog_ms=1.5, pending_units=3, unit_ms=0.1), drain=900.0)) == []


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (report(""), "worker"),
        (report("w" * 257), "worker"),
        (report("w0", pool=""), "pool"),
        (report("w0", drain=math.nan), "drain_ms_per_second"),
        (report("w0", drain=-1.0), "drain_ms_per_second"),
        (report("w0", lane("a", backlog_ms=math.inf)), "lanes[0].backlog_ms"),
        (report("w0", lane("a"), lane("b", unit_ms=-0.1)), "lanes[1].unit_ms"),
        (report("w0", lane("a", ms_per_token=math.nan)), "lanes[0].ms_per_token"),
        (report("w0", window=math.inf), "device.window_ms"),
        (report("w0", lane("")), "lanes[0].lane"),
        (report("w0", lane("a", pending_units=2**63)), "lanes[0].pending_units"),
        (report("w0", *[lane("a")] * (LANES + 1)), "lanes"),
    ],
)
def test_a_bad_report_names_the_field(bad: scheduler_pb2.ReportRequest, field: str):
    assert [path for path, _ in violations(bad)] == [field]


def test_an_unknown_residency_is_refused():
    bad = report("w0", lane("a"))
    bad.lanes[0].residency = 9  # pyright: ignore[reportAttributeAccessIssue]
    assert [path for path, _ in violations(bad)] == ["lanes[0].residency"]
