"""The fleet as it is known now: the last report of each worker, and what each is to hold.

Soft state: workers tell it anew after a restart, so nothing is kept. Pure, with a clock passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.scheduler.v1 import scheduler_pb2
from shoal_scheduler.lane_state import lane_state

REPORT_LIFE_S = 3.0
"""A worker reports each second; one that misses three is taken for gone."""
READY_LATELY_S = 10.0
"""A lane that had a ready worker within this time is not given up: a restart with its loading takes less."""


@dataclass(frozen=True)
class Wanted:
    """A registered model: what the fleet is to serve."""

    name: str
    pool: str
    lane: str
    digest: str


@dataclass
class _Member:
    seat: object
    report: scheduler_pb2.ReportRequest
    heard_s: float


class Fleet:
    """Workers by name. A worker belongs to the seat (its stream) that reported last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[str, _Member] = {}
        self._wanted: tuple[Wanted, ...] | None = None
        self._ready_s: dict[str, float] = {}
        """When a worker last reported a lane READY, by token."""

    def want(self, models: Iterable[Wanted]) -> None:
        """Takes the registry's models. Until it is called no plan is made: an empty one would unload all."""
        self._wanted = tuple(sorted(models, key=lambda model: model.name))

    def observe(self, seat: object, report: scheduler_pb2.ReportRequest) -> None:
        """A worker's report, come by a seat; a newer seat of the same worker takes its place."""
        member = self._members.get(report.worker)
        if member is None or member.seat is not seat:
            self._members[report.worker] = _Member(seat, report, self._clock())
        else:
            member.report, member.heard_s = report, self._clock()
        for lane in report.lanes:
            if lane.residency == scheduler_pb2.RESIDENCY_READY:
                self._ready_s[lane.lane] = self._clock()

    def gone(self, seat: object, worker: str) -> None:
        """A seat ended; its worker is gone unless another seat has taken it over."""
        member = self._members.get(worker)
        if member is not None and member.seat is seat:
            del self._members[worker]

    def expire(self) -> bool:
        """Drops workers that were not heard for REPORT_LIFE_S; whether there were any."""
        oldest_s = self._clock() - REPORT_LIFE_S
        silent = [name for name, member in self._members.items() if member.heard_s < oldest_s]
        for name in silent:
            del self._members[name]
        self._ready_s = {lane: at_s for lane, at_s in self._ready_s.items() if self._is_lately(at_s)}
        return bool(silent)

    def plan(self, worker: str) -> tuple[str, ...] | None:
        """Digests that a worker is to hold: every model of its pool, by name; None while that is not known.

        A worker loads what fits in this order; one that reported FAILED stays listed, for a later try.
        """
        member = self._members.get(worker)
        if member is None or self._wanted is None:
            return None
        return tuple(model.digest for model in self._wanted if model.pool == member.report.pool)

    def reports(self) -> list[scheduler_pb2.ReportRequest]:
        """The last report of every worker, by name."""
        return [self._members[name].report for name in sorted(self._members)]

    def lane_states(self) -> dict[str, scheduler_pb2.LaneState]:
        """Every lane that is registered or that a worker reports, by token."""
        views: dict[str, list[tuple[scheduler_pb2.ReportRequest, scheduler_pb2.WorkerLane]]] = {
            model.lane: [] for model in self._wanted or ()
        }
        for report in self.reports():
            reported = {lane.lane: lane for lane in report.lanes}
            for model in self._wanted or ():
                if model.pool == report.pool and model.lane not in reported:
                    # A worker that has not heard of its model yet may still serve it.
                    reported[model.lane] = scheduler_pb2.WorkerLane(lane=model.lane)
            for token, lane in reported.items():
                views.setdefault(token, []).append((report, lane))
        return {token: lane_state(token, seen, self._was_ready(token)) for token, seen in views.items()}

    def _was_ready(self, lane: str) -> bool:
        at_s = self._ready_s.get(lane)
        return at_s is not None and self._is_lately(at_s)

    def _is_lately(self, at_s: float) -> bool:
        return self._clock() - at_s < READY_LATELY_S
