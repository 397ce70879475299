"""What to send next: batches to the device and pulls to the queue, decided from the state of both."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal_common import limits
from shoal_common.profile import Tuned
from shoal_worker.decisions import batching, credit
from shoal_worker.decisions.backlog import Backlog, Queue
from shoal_worker.decisions.batching import Batch
from shoal_worker.decisions.cost import CostModel, CostState
from shoal_worker.decisions.device import Device
from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.decisions.meter import Meter, Reading
from shoal_worker.decisions.pace import Pace
from shoal_worker.decisions.pull_plan import DRY_S, Order, PullPlan
from shoal_worker.decisions.put_back import Standing, Surplus
from shoal_worker.decisions.turns import Turns
from shoal_worker.decisions.unit import BULK, INTERACTIVE, HeldUnit, Stage

DUE_SHARE = 0.7
"""A lane is due once its work has waited for this share of a batch of its class."""
CRUMB_SHARE = 0.2
"""A batch that could grow by less than this is not worth another pull."""
WORTH_SHARE = 0.25
"""Of a batch's own cost: so long a free stream waits for units that are on their way, lest they need another batch."""
WAKE_S = 0.0005
"""The finest step of the timer."""


@dataclass(slots=True)
class Steps:
    """What is to be done now."""

    batches: list[tuple[int, Batch]] = field(default_factory=list)
    expired: list[HeldUnit] = field(default_factory=list)
    """Units whose deadline passed before their batch; they have left the backlog."""
    pulls: list[Order] = field(default_factory=list)
    notes: list[DrainNote] = field(default_factory=list)
    """What is to be told to siblings."""
    wake_in_s: float | None = None
    """Ask again then, if nothing happens before."""


class Dispatch:
    """The worker's decisions. Times are seconds on the loop's monotonic clock."""

    def __init__(self, streams: int, pace: Pace, rng: random.Random, now_s: float) -> None:
        self.pace = pace
        self.plan = PullPlan(rng)
        self.device = Device(streams)
        self._backlog = Backlog()
        self._turns = Turns(pace.interactive_ms)
        self._meter = Meter(now_s)
        self._costs: dict[str, CostModel] = {}
        self._paces: dict[str, Pace] = {}
        self._saved: Mapping[str, CostState] = {}
        self._runnable: set[str] = set()
        self._lanes: dict[str, str] = {}
        self._lane_of: dict[str, str] = {}
        self._batches: dict[int, Batch] = {}
        self._ids = itertools.count(1)
        self._due_s = _due_s([pace])
        self._fetching: set[HeldUnit] = set()
        self._drained_s = self._admitted_s = float("-inf")
        """When the last drain was sent, and when units last went to the sidecar."""

    def serve(self, runnable: Mapping[str, Tuned], lanes: Mapping[str, str]) -> None:
        """Names the models that can run, by digest, with their tuning; and the lanes to pull, with their digests."""
        self._runnable = set(runnable)
        self._lanes = dict(lanes)
        self._lane_of = {digest: lane for lane, digest in lanes.items()}
        for digest, tuned in runnable.items():
            self._paces[digest] = self.pace.of_model(tuned)
            if digest not in self._costs:
                cost = self._costs[digest] = CostModel(tuned.cost, self.device.streams)
                if digest in self._saved:
                    cost.restore(self._saved[digest])
        self._due_s = _due_s([self._paces[digest] for digest in runnable] or [self.pace])
        self.plan.serve(lanes)

    @property
    def costs(self) -> Mapping[str, CostModel]:
        """The cost models by digest, of every model that could run since the start."""
        return self._costs

    def restore_costs(self, saved: Mapping[str, CostState]) -> None:
        """Names what a former life knew of models on this device; what this one has learnt more of stays."""
        self._saved = saved
        for digest, state in saved.items():
            cost = self._costs.get(digest)
            if cost is not None and cost.batches < state.batches:
                cost.restore(state)

    def unit_ms(self, profile_digest: str) -> float:
        """Mean predicted cost of a model's units; 0 before it could run."""
        cost = self._costs.get(profile_digest)
        return cost.unit_ms if cost else 0.0

    @property
    def window_ms(self) -> float:
        """Predicted milliseconds of work, running and waiting, that keep the device busy with full batches: those
        that run, the next one, and one that is on its way. A unit that is more than a batch may be counts as one."""
        batches_ms = [
            max(self._bound_ms(INTERACTIVE, digest), self._costs[digest].batch_ms + self._costs[digest].unit_ms)
            for digest in self._runnable
        ]
        return (self.device.streams + 2) * max(batches_ms, default=self.pace.interactive_ms)

    def in_full_batches_ms(self, batch: Batch) -> float:
        """What a batch's units would cost in full batches, their part of those batches' own cost included.

        Whoever sizes work by it must not take crumbs for dear: fewer would be sent, and batches would stay crumbs.
        """
        cost = self._costs[batch.profile_digest]
        bound_ms = batching.limit_ms(batch.work_class, False, cost, self._paces[batch.profile_digest])
        return sum(unit.cost_ms for unit in batch.units) * bound_ms / (bound_ms - cost.batch_ms)

    def can_run(self, profile_digest: str) -> bool:
        """Whether a model's units can be admitted."""
        return profile_digest in self._runnable

    def admitting(self, units: Sequence[HeldUnit], now_s: float) -> None:
        """Units go to the sidecar; their models can run.

        One that comes alone to an idle device need not be counted first: the sidecar runs it once it is tokenized,
        which saves a round trip.
        """
        at_once = len(units) == 1 and not len(self.device) and self._backlog.is_empty and not self.plan.is_draining
        self._admitted_s = now_s
        for unit in units:
            unit.is_counted = False
            unit.cost_ms = self._costs[unit.profile_digest].predict(unit.items, unit.tokens, unit.squared_tokens)
            if at_once:
                self._backlog.ready(unit)
            else:
                self._backlog.expect(unit)

    def fetching(self, unit: HeldUnit) -> None:
        """A unit's blobs are on their way here. It is `counted` once the sidecar has read them, however long that
        takes: meanwhile the device is free for others."""
        unit.is_counted = False
        unit.cost_ms = self._costs[unit.profile_digest].predict(unit.items, unit.tokens, unit.squared_tokens)
        unit.stage = Stage.FETCHING
        self._fetching.add(unit)

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
                batch.squared_tokens = sum(one.squared_tokens for one in batch.units)
                self._predict_alone(batch)
                self.device.predicted(batch_id, batch.predicted_ms, batch.alone_ms)

    def _predict_alone(self, batch: Batch) -> None:
        cost = self._costs[batch.profile_digest]
        batch.alone_ms = cost.predict_alone(batch.items, batch.tokens, batch.squared_tokens)

    def leave(self, unit: HeldUnit, stage: Stage) -> None:
        """A unit leaves before its batch."""
        self._backlog.remove(unit, stage)

    def granted(self, unit: HeldUnit) -> None:
        """A sibling's unit, or one from before a restart, is this worker's: tokenized, with its exact size set."""
        cost = self._costs[unit.profile_digest]
        unit.is_counted = True
        unit.cost_ms = cost.predict(unit.items, unit.tokens, unit.squared_tokens)
        cost.seen(unit.cost_ms)
        self._backlog.ready(unit)

    def taken(self, unit: HeldUnit) -> None:
        """A unit is a sibling's, or went back to the queue."""
        self._backlog.remove(unit, Stage.GONE)

    def standing(self, now_s: float) -> Standing:
        """What siblings may know of this device."""
        waiting_ms = sum(self._backlog.waiting_ms(name, self.can_run) for name in (INTERACTIVE, BULK))
        starts_in_ms = self.device.starts_in_ms(now_s) + waiting_ms
        has_work = self.device.has_next or self.plan.is_draining
        return Standing(starts_in_ms, 0.0 if has_work else max(0.0, self.pace.interactive_ms - waiting_ms))

    def surplus(self, now_s: float) -> list[Surplus]:
        """Ready units that would start so late that another device may be sooner, last to run first."""
        starts_ms = self.device.starts_in_ms(now_s)
        over: list[Surplus] = []
        for work_class in self._turns.order():
            for queue in batching.in_turn(self._backlog, work_class, self.can_run):
                if not queue.ready:
                    continue
                cost, bound_ms = self._costs[queue.profile_digest], self._bound_ms(work_class, queue.profile_digest)
                batch_ms = cost.batch_ms
                for unit in queue.units():
                    if batch_ms + unit.cost_ms > bound_ms and batch_ms > cost.batch_ms:
                        starts_ms, batch_ms = starts_ms + batch_ms / self.device.streams, cost.batch_ms
                    batch_ms += unit.cost_ms
                    if starts_ms > self.pace.pull_lead_ms:
                        over.append(Surplus(unit, unit.cost_ms, starts_ms))
                starts_ms += batch_ms / self.device.streams
        over.reverse()
        return over

    def finished(self, batch_id: int, compute_ms: float, now_s: float, ended_s: float | None = None) -> Batch | None:
        """A batch is done, and left the device at `ended_s`. The cost model learns from it; None when it was lost
        with a sidecar before."""
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return None
        batch.alone = self.device.runs_alone(batch_id)
        # Waiting and transfer are not the device's; what ran beside others had a share of it only.
        computed_ms = compute_ms if batch.alone else compute_ms / self.device.streams
        batch.device_ms = min(self.device.finished(batch_id, now_s, ended_s), computed_ms)
        cost = self._costs[batch.profile_digest]
        cost.learn(batch.items, batch.tokens, batch.squared_tokens, batch.device_ms, alone=batch.alone)
        self._meter.finished(batch.foreseen_ms, batch.device_ms, batch.tokens)
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
        steps = Steps(expired=self._backlog.take_expired(now_s), notes=self.plan.take_notes())
        self._send_pulls(now_s, steps)
        if self._send_batches(now_s, steps):
            self._send_pulls(now_s, steps)  # There is room again for what was sent.
        steps.wake_in_s = self._wake_in_s(now_s)
        return steps

    def _send_batches(self, now_s: float, steps: Steps) -> bool:
        sent = False
        while not self.device.has_next:
            queue = batching.next_queue(self._backlog, self._turns, self.can_run)
            if queue is None or not queue.ready or self._may_wait(queue, now_s):
                break
            cost = self._costs[queue.profile_digest]
            batch = batching.take(self._backlog, queue, cost, self._bound_ms(queue.work_class, queue.profile_digest))
            batch_id = next(self._ids)
            self._batches[batch_id] = batch
            self._predict_alone(batch)
            self.device.sent(batch_id, batch.predicted_ms, now_s, batch.alone_ms)
            self._turns.charge(batch.work_class, batch.predicted_ms)
            steps.batches.append((batch_id, batch))
            sent = True
        return sent

    def _may_wait(self, queue: Queue, now_s: float) -> bool:
        """Whether a queue's next batch may wait for more."""
        cost = self._costs[queue.profile_digest]
        if batching.is_full(queue, cost, self._bound_ms(queue.work_class, queue.profile_digest)):
            return False
        if self._coming_until_s(queue, now_s) > now_s:
            return True
        return not self.device.has_free_stream and self.device.free_in_ms(now_s) > self.pace.ready_lead_ms

    def _coming_until_s(self, queue: Queue, now_s: float) -> float:
        """Until when more is worth waiting for even where a stream is free: a batch of what is there already would
        cost another batch's time."""
        until_s = float("-inf")
        if self.plan.is_draining:
            until_s = self._drained_s
        if queue.expected:
            until_s = max(until_s, self._admitted_s)
        own_ms = self._costs[queue.profile_digest].batch_ms
        return until_s + max(self.pace.ready_lead_ms, own_ms * WORTH_SHARE) / 1e3

    def _send_pulls(self, now_s: float, steps: Steps) -> None:
        if self.plan.is_draining or self.device.has_next or self.device.free_in_ms(now_s) > self.pace.pull_lead_ms:
            return
        if self._fetches_enough():
            return
        queue = batching.next_queue(self._backlog, self._turns, self.can_run)
        if queue is not None:
            self._top_up(queue, now_s, steps)
            return
        idle = self.device.has_free_stream
        for work_class in self._turns.order():
            lane = self.plan.next_lane(work_class, self._due_s[work_class], now_s)
            if lane is None and not idle:  # An idle worker's waiting pulls are answered at once if there is work.
                lane = self.plan.unseen_lane(work_class, now_s)
            if lane is not None:
                self._drain(lane, work_class, 0.0, now_s, steps)
                break
            if work_class == BULK:
                self._turns.no_bulk()
        if idle and not steps.pulls:
            steps.pulls.extend(self.plan.wait(now_s))
        if not idle:
            steps.pulls.extend(self.plan.peek(self._due_s, now_s))

    def _fetches_enough(self) -> bool:
        """Whether as many units wait for their blobs as may: siblings are to have the others."""
        if not self._fetching:
            return False
        self._fetching = {unit for unit in self._fetching if unit.stage is Stage.FETCHING}
        cost_ms = sum(unit.cost_ms for unit in self._fetching)
        return len(self._fetching) >= limits.FETCHES or cost_ms >= self.pace.interactive_ms

    def _top_up(self, queue: Queue, now_s: float, steps: Steps) -> None:
        """Fills up the next batch while that costs no time: never with another lane's work, and not by crumbs."""
        lane = self._lane_of.get(queue.profile_digest)
        in_time = self.device.free_in_ms(now_s) > self.pace.ready_lead_ms
        if in_time and lane is not None and self.plan.may_hold(lane, queue.work_class, now_s):
            self._drain(lane, queue.work_class, queue.ready_ms + queue.expected_ms, now_s, steps)

    def _drain(self, lane: str, work_class: str, held_ms: float, now_s: float, steps: Steps) -> None:
        digest = self._lanes[lane]
        cost, bound_ms = self._costs[digest], self._bound_ms(work_class, digest)
        room_ms = bound_ms - cost.batch_ms - held_ms
        if room_ms > bound_ms * CRUMB_SHARE:
            self._drained_s = now_s
            steps.pulls.append(self.plan.drain(lane, work_class, credit.messages(room_ms, cost.unit_ms), now_s))

    def _bound_ms(self, work_class: str, digest: str) -> float:
        """What a batch may take: bulk is bounded like interactive while that waits, and in the turns of its floor."""
        is_floor = self._turns.order()[0] == BULK
        interactive_waits = is_floor or self._backlog.waiting_ms(INTERACTIVE, self.can_run) > 0
        return batching.limit_ms(work_class, interactive_waits, self._costs[digest], self._paces[digest])

    def _wake_in_s(self, now_s: float) -> float | None:
        """The next moment at which time alone changes a decision: a lead begins, or a dry lane may have filled."""
        if self.device.has_next:
            return None
        queue = batching.next_queue(self._backlog, self._turns, self.can_run)
        if queue is not None and (until_s := self._coming_until_s(queue, now_s)) > now_s:
            return max(WAKE_S, until_s - now_s)
        if self.device.has_free_stream:
            return None
        free_in_s = self.device.free_in_ms(now_s) / 1e3
        leads_s = (free_in_s - self.pace.pull_lead_ms / 1e3, free_in_s - self.pace.ready_lead_ms / 1e3)
        ahead = [lead_s for lead_s in leads_s if lead_s > 0]
        if free_in_s <= self.pace.pull_lead_ms / 1e3:
            ahead.append(DRY_S)
        return max(WAKE_S, min(ahead)) if ahead else None


def _due_s(paces: Sequence[Pace]) -> dict[str, float]:
    """By class, after how long a lane that was not drained is due: so much of the longest batch."""
    return {name: max(one.batch_ms(name) for one in paces) / 1e3 * DUE_SHARE for name in (INTERACTIVE, BULK)}
