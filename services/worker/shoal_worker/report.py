"""What a worker tells the scheduler, put together."""

from __future__ import annotations

from collections import defaultdict

from shoal.scheduler.v1 import scheduler_pb2
from shoal_worker import metrics
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.unit import Stage
from shoal_worker.held import Held
from shoal_worker.residency import Residency
from shoal_worker.settings import WorkerSettings
from shoal_worker.token_costs import TokenCosts


def build(
    settings: WorkerSettings,
    residency: Residency,
    dispatch: Dispatch,
    token_costs: TokenCosts,
    held: Held,
    now_s: float,
) -> scheduler_pb2.ReportRequest:
    """The state at `now_s` (monotonic); rates are over the time since the last report."""
    reading = dispatch.read_meter(now_s)
    metrics.busy_share.set(reading.busy_share)
    metrics.tokens_per_second.set(reading.tokens_per_second)
    backlog_ms: defaultdict[str, float] = defaultdict(float)
    for unit in held:
        if unit.stage is not Stage.ANSWERED:
            backlog_ms[unit.profile_digest] += unit.cost_ms
    return scheduler_pb2.ReportRequest(
        worker=settings.worker,
        machine=settings.machine,
        pool=settings.pool,
        device=scheduler_pb2.Device(
            name=settings.device,
            memory_bytes=residency.memory_bytes,
            used_bytes=residency.used_bytes,
            streams=settings.streams_or_auto,
            window_ms=dispatch.window_ms,
        ),
        lanes=[
            scheduler_pb2.WorkerLane(
                lane=here.model.lane.token,
                profile_digest=here.model.digest,
                residency=here.state,
                error=here.error,
                progress=here.progress,
                backlog_ms=backlog_ms[here.model.digest],
                pending_units=dispatch.plan.pending(here.model.lane.token),
                unit_ms=dispatch.unit_ms(here.model.digest),
                ms_per_token=token_costs.ms_per_token(here.model.digest),
            )
            for here in residency
            if here.retired_s is None
        ],
        busy_share=reading.busy_share,
        drain_ms_per_second=reading.drain_ms_per_second,
        tokens_per_second=reading.tokens_per_second,
    )
