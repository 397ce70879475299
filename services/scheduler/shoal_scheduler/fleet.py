"""The fleet as it is known now: the last report of each worker, and what each is to hold.

Soft state: workers tell it anew after a restart, so nothing is kept. Pure, with a clock passed in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shoal.scheduler.v1 import scheduler_pb2
from shoal_common.profile import runtime_of
from shoal_scheduler.lane_state import lane_state

REPORT_LIFE_S = 3.0
"""A worker reports each second; one that misses three is taken for gone."""
READY_LATELY_S = 10.0
"""A lane that had a ready worker within this time is not given up: a restart with its loading takes less."""
IDLE_FRESH_S = 1.5
"""A worker that said longer ago that it has nothing to do may have much: it has missed a report."""


@dataclass(frozen=True)
class Wanted:
    """A registered model: what the fleet is to serve."""

    name: str
    pool: str
    lane: str
    digest: str
    runtimes: tuple[str, ...] = ("torch",)
    """Those that may run it."""

    def may_run_on(self, report: scheduler_pb2.ReportRequest) -> bool:
        """Whether a worker that reports so is to hold it."""
        return self.pool == report.pool and runtime_of(report.device.name) in self.runtimes


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
        self._idle: Mapping[str, frozenset[str]] = {}

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
        """Digests that a worker is to hold, by name: the models of its pool that its device's runtime may run.

        None while that is not known.

        A worker loads what fits in this order; one that reported FAILED stays listed, for a later try.
        """
        member = self._members.get(worker)
        if member is None or self._wanted is None:
            return None
        return tuple(model.digest for model in self._wanted if model.may_run_on(member.report))

    def find_idle(self) -> bool:
        """Looks anew where workers have nothing to do; whether that changed."""
        before, self._idle = self._idle, self._idle_machines()
        return self._idle != before

    def idle_lanes(self, worker: str) -> tuple[str, ...]:
        """Tokens of a worker's lanes, sorted, for which a worker on another machine has nothing to do."""
        member = self._members.get(worker)
        if member is None:
            return ()
        here = {member.report.machine}
        return tuple(sorted(lane.lane for lane in member.report.lanes if self._idle.get(lane.lane, here) - here))

    def _idle_machines(self) -> dict[str, frozenset[str]]:
        """Machines by the token of each lane that a worker there is ready for, but has no work of."""
        machines: defaultdict[str, set[str]] = defaultdict(set)
        oldest_s = self._clock() - IDLE_FRESH_S
        for member in self._members.values():
            lanes = member.report.lanes
            if member.heard_s < oldest_s or any(lane.backlog_ms or lane.pending_units for lane in lanes):
                continue
            for lane in lanes:
                if lane.residency == scheduler_pb2.RESIDENCY_READY:
                    machines[lane.lane].add(member.report.machine)
        return {lane: frozenset(names) for lane, names in machines.items()}

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
                if model.may_run_on(report) and model.lane not in reported:
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
