"""What a worker's report must be: names that are there, numbers that can be summed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.scheduler.v1 import scheduler_pb2
from shoal_common import limits

NAME_CHARS = 256
LANES = 10_000
MEASURES = ("busy_share", "drain_ms_per_second", "tokens_per_second")
LANE_MEASURES = ("backlog_ms", "unit_ms", "ms_per_token")


def violations(report: scheduler_pb2.ReportRequest) -> list[tuple[str, str]]:
    """Each bad field's path and what is wrong with it; empty when nothing is."""
    return list(_violations(report))


def _violations(report: scheduler_pb2.ReportRequest) -> Iterator[tuple[str, str]]:
    for field in ("worker", "pool"):
        value = getattr(report, field)
        if not 1 <= len(value) <= NAME_CHARS:
            yield field, f"must have 1 to {NAME_CHARS} characters"
    for field in MEASURES:
        if not _is_measure(getattr(report, field)):
            yield field, "must be a finite number, 0 or more"
    if not _is_measure(report.device.window_ms):
        yield "device.window_ms", "must be a finite number, 0 or more"
    if len(report.lanes) > LANES:
        yield "lanes", f"has {len(report.lanes):,} entries; at most {LANES:,} are allowed"
        return
    for index, lane in enumerate(report.lanes):
        if not lane.lane:
            yield f"lanes[{index}].lane", "must be given"
        if lane.residency not in scheduler_pb2.Residency.values():
            yield f"lanes[{index}].residency", f"{lane.residency} is no residency"
        if lane.pending_units > limits.LANE_UNITS * 2:
            yield f"lanes[{index}].pending_units", f"is over what a lane can hold, {limits.LANE_UNITS * 2:,}"
        for field in LANE_MEASURES:
            if not _is_measure(getattr(lane, field)):
                yield f"lanes[{index}].{field}", "must be a finite number, 0 or more"


def _is_measure(value: float) -> bool:
    return math.isfinite(value) and value >= 0
