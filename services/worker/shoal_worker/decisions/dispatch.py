"""What to send next: batches to the device and pulls to the queue, decided from the state of both."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal_common.profile import Cost
from shoal_worker.decisions import batching, credit
from shoal_worker.decisions.backlog import Backlog
from shoal_worker.decisions.batching import Batch
from shoal_worker.decisions.cost import CostModel
from shoal_worker.decisions.device import Device
from shoal_worker.decisions.meter import Meter, Reading
from shoal_worker.decisions.pull_plan import DRY_S, Order, PullPlan
from shoal_worker.decisions.turns import Turns
from shoal_worker.decisions.unit import BULK, INTERACTIVE, HeldUnit, Stage

PULL_LEAD_MS = 20.0
"""A busy worker pulls so long before a stream is predicted to be free: the pull, tokenizing and sending take
about 5 ms, the rest covers predictions that are too long."""
WAKE_S = 0.0005
"""The finest step of the timer."""

assert PULL_LEAD_MS > batching.READY_LEAD_MS, "what is pulled must be there when a batch is sent"
assert PULL_LEAD_MS < batching.INTERACTIVE_MS, "pulling early takes work that a sibling could start sooner"


@dataclass(slots=True)
class Steps:
    """What is to be done now."""

    batches: list[tuple[int, Batch]] = field(default_factory=list)
    expired: list[HeldUnit] = field(default_factory=list)
    """Units whose deadline passed before their batch; they have left the backlog."""
    pulls: list[Order] = field(default_factory=list)
    wake_in_s: float | None = None
    """Ask again then, if nothing happens before."""


class Dispatch:
    """The worker's decisions. Times are seconds on the loop's monotonic clock."""

    def __init__(self, streams: int, rng: random.Random, now_s: float) -> None:
        self.plan = PullPlan(rng)
        self.device = Device(streams)
        self._backlog = Backlog()
        self._turns = Turns()
        self._meter = Meter(now_s)
        self._costs: dict[str, CostModel] = {}
        self._runnable: set[str] = set()
        self._lanes: dict[str, str] = {}
        self._batches: dict[int, Batch] = {}
        self._ids = itertools.count(1)

    def serve(self, runnable: Mapping[str, Cost], lanes: Mapping[str, str]) -> None:
        """Names the models that can run, by digest with their seeds, and the lanes to pull with their digests."""
        self._runnable = set(runnable)
        self._lanes = dict(lanes)
        for digest, seed in runnable.items():
            if digest not in self._costs:
                self._costs[digest] = CostModel(seed)
        self.plan.serve(lanes)

    def unit_ms(self, profile_digest: str) -> float:
        """Mean predicted cost of a model's units; 0 before it could run."""
        cost = self._costs.get(profile_digest)
        return cost.unit_ms if cost else 0.0

    def can_run(self, profile_digest: str) -> bool:
        """Whether a model's units can be admitted."""
        return profile_digest in self._runnable

    def admitting(self, units: Sequence[HeldUnit]) -> None:
        """Units go to the sidecar; their models can run.

        One that comes alone to an idle device need not be counted first: the sidecar runs it once it is tokenized,
        which saves a round trip.
        """
        at_once = len(units) == 1 and not len(self.device) and self._backlog.is_empty
        for unit in units:
            unit.is_counted = False
            unit.cost_ms = self._costs[unit.profile_digest].predict(unit.items, unit.tokens, unit.squared_tokens)
            if at_once:
                self._backlog.ready(unit)
            else:
                self._backlog.expect(unit)

    def counted(self, unit: HeldUnit, items: int, tokens: int, squared_tokens: int) -> None:
        """The sidecar has a unit, and this is its exact size."""
        cost = self._costs[unit.profile_digest]
        is_running = unit.stage is Stage.RUNNING
        if not is_running:
            self._backlog.remove(unit, Stage.GONE)
        unit.is_counted = True
        unit.items, unit.tokens, unit.squared_tokens = items, tokens, squared_tokens
        guessed_ms, unit.cost_ms = unit.cost_ms, cost.predict(items, tokens, squared_tokens)
        cost.seen(unit.cost_ms)
        if is_running:
            self._correct(unit, unit.cost_ms - guessed_ms)
        else:
            self._backlog.ready(unit)

    def _correct(self, unit: HeldUnit, more_ms: float) -> None:
        """Predicts the batch of a unit anew, which was sent before it was counted."""
        for batch_id, batch in self._batches.items():
            if unit in batch.units:
                batch.predicted_ms += more_ms
                batch.tokens = sum(one.tokens for one in batch.units)
                batch.items = sum(one.items for one in batch.units)
                self.device.predicted(batch_id, batch.predicted_ms)

    def leave(self, unit: HeldUnit, stage: Stage) -> None:
        """A unit leaves before its batch."""
        self._backlog.remove(unit, stage)

    def finished(self, batch_id: int, compute_ms: float, now_s: float) -> Batch | None:
        """A batch is done. The cost model learns from it; None when it was lost with a sidecar before."""
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return None
        # Waiting and transfer are not the device's; what ran beside others had a share of it only.
        batch.device_ms = min(self.device.finished(batch_id, now_s), compute_ms)
        self._costs[batch.profile_digest].learn(batch.predicted_ms, batch.device_ms)
        self._meter.finished(batch.predicted_ms, batch.device_ms, batch.tokens)
        return batch

    def refused(self, batch_id: int, now_s: float) -> Batch | None:
        """A batch was not run; its units are at no stage until each is returned or let go."""
        batch = self._batches.pop(batch_id, None)
        if batch is not None:
            self.device.finished(batch_id, now_s)
        return batch

    def return_unit(self, unit: HeldUnit) -> None:
        """A unit of a refused batch waits again."""
        self._backlog.ready(unit)

    def lost(self, now_s: float) -> None:
        """The sidecar is gone, and with it every unit and batch."""
        self.device.reset(now_s)
        self._batches.clear()
        self._backlog = Backlog()

    def read_meter(self, now_s: float) -> Reading:
        """What was done since the last reading."""
        return self._meter.read(self.device.total_busy_s(now_s), now_s)

    def advance(self, now_s: float) -> Steps:
        """Decides; what it returns counts as done."""
        steps = Steps(expired=self._backlog.take_expired(now_s))
        self._send_pulls(now_s, steps)
        self._send_batches(now_s, steps)
        self._send_pulls(now_s, steps)  # There is room again for what was sent.
        steps.wake_in_s = self._wake_in_s(now_s)
        return steps

    def _send_batches(self, now_s: float, steps: Steps) -> None:
        while not self.device.has_next:
            queue = batching.next_queue(self._backlog, self._turns, self.can_run)
            if queue is None:
                return
            cost = self._costs[queue.profile_digest]
            bound_ms = self._bound_ms(queue.work_class, cost)
            if not batching.is_full(queue, cost, bound_ms) and self._may_wait(now_s):
                return
            batch = batching.take(self._backlog, queue, cost, bound_ms)
            batch_id = next(self._ids)
            self._batches[batch_id] = batch
            self.device.sent(batch_id, batch.predicted_ms, now_s)
            self._turns.charge(batch.work_class, batch.predicted_ms)
            steps.batches.append((batch_id, batch))

    def _may_wait(self, now_s: float) -> bool:
        """Whether a batch may wait for more: no stream is free, or others run while a drain is on its way."""
        running = len(self.device) > 0
        return running and (self.plan.is_draining or self.device.free_in_ms(now_s) > batching.READY_LEAD_MS)

    def _send_pulls(self, now_s: float, steps: Steps) -> None:
        if self.plan.is_draining or self.device.has_next or self.device.free_in_ms(now_s) > PULL_LEAD_MS:
            return
        waiting_ms = {name: self._backlog.waiting_ms(name, self.can_run) for name in (INTERACTIVE, BULK)}
        idle = self.device.has_free_stream and not any(waiting_ms.values())
        for work_class in self._turns.order():
            # Waiting pulls are answered at once if there is work: an idle worker need not ask first.
            lane = self.plan.next_lane(work_class, now_s, only_known=idle)
            if lane is not None:
                cost = self._costs[self._lanes[lane]]
                room_ms = self._bound_ms(work_class, cost) - cost.batch_ms - waiting_ms[work_class]
                if count := credit.messages(room_ms, cost.unit_ms):
                    steps.pulls.append(self.plan.drain(lane, work_class, count, now_s))
                    return
            if waiting_ms[work_class]:  # The only way to have no room.
                return
            if work_class == BULK:
                self._turns.no_bulk()
        if idle:
            steps.pulls.extend(self.plan.wait(now_s))

    def _bound_ms(self, work_class: str, cost: CostModel) -> float:
        interactive_waits = self._backlog.waiting_ms(INTERACTIVE, self.can_run) > 0
        return batching.limit_ms(work_class, interactive_waits, cost)

    def _wake_in_s(self, now_s: float) -> float | None:
        """The next moment at which time alone changes a decision: a lead begins, or a dry lane may have filled."""
        if self.device.has_free_stream or self.device.has_next:
            return None
        free_in_s = self.device.free_in_ms(now_s) / 1e3
        leads_s = (free_in_s - PULL_LEAD_MS / 1e3, free_in_s - batching.READY_LEAD_MS / 1e3)
        ahead = [lead_s for lead_s in leads_s if lead_s > 0]
        if 0 < free_in_s <= PULL_LEAD_MS / 1e3:
            ahead.append(DRY_S)
        return max(WAKE_S, min(ahead)) if ahead else None
