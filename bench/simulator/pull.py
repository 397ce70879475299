"""Workers that pull: the real decisions, around a simulated device."""

from __future__ import annotations

import random

from bench.simulator.broker import Broker, Message
from bench.simulator.clock import Clock
from bench.simulator.demand import Demand
from bench.simulator.hardware import BATCH_MS, TOKEN_US, Hardware, Job
from bench.simulator.latencies import LOCAL_HOP_S, QUEUED_S, TOKENIZE_S, TOKENIZE_TEXT_S, hop_s
from bench.simulator.record import Record
from shoal_common.profile import Cost, Tuned
from shoal_worker.decisions.batching import Batch
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.pace import Pace
from shoal_worker.decisions.pull_plan import Order
from shoal_worker.decisions.unit import HeldUnit, INTERACTIVE, Stage

SEED = Cost(batch_ms=BATCH_MS, token_us=TOKEN_US)
DEADLINE_S = 30.0


class Worker:
    def __init__(self, mesh, number: int, rng: random.Random, pace: Pace) -> None:
        self._mesh = mesh
        self._clock: Clock = mesh.clock
        self.hardware = Hardware(self._clock, rng)
        self.dispatch = Dispatch(1, pace, random.Random(rng.random()), 0.0)
        digests = mesh.digests
        self.dispatch.serve({d: Tuned(cost=SEED) for d in digests}, {f"lane-{n}": d for n, d in enumerate(digests)})
        self.batch_texts = 0
        self.batch_tokens = 0
        self._wakes = 0
        self._counted_at: dict[str, float] = {}

    def advance(self) -> None:
        now_s = self._clock.now_s
        steps = self.dispatch.advance(now_s)
        for batch_id, batch in steps.batches:
            self._send(batch_id, batch)
        for order in steps.pulls:
            self._mesh.broker.pull(order, self)
        for note in steps.notes:
            self._mesh.tell(note, self)
        self._wakes += 1
        if steps.wake_in_s is not None:
            self._clock.after(steps.wake_in_s, self._wake, self._wakes)

    def _wake(self, number: int) -> None:
        if number == self._wakes:
            self.advance()

    def peeked(self, order, waits):
        if waits:
            self.dispatch.plan.peeked(order.pull_id, self._clock.now_s)
        else:
            self.dispatch.plan.ended(order.pull_id, empty=True, now_s=self._clock.now_s)
        self.advance()

    def pulled(self, order: Order, messages: list[Message], ended: bool) -> None:
        now_s = self._clock.now_s
        plan = self.dispatch.plan
        demand: Demand = self._mesh.demand
        if messages:
            digest = self._mesh.digests[demand.models[messages[0].index]]
            units = []
            for m in messages:
                plan.delivered(order.lane, order.work_class, order.waits, m.pending, now_s, now_s - m.published_s)
                guess = demand.guesses[m.index]
                units.append(HeldUnit(
                    str(m.index), "", "", order.lane, order.work_class, digest, demand.arrivals_s[m.index] + DEADLINE_S,
                    now_s, m.published_s, "", m.deliveries, b"", 1, guess, guess * guess))
            self.dispatch.admitting(units, now_s)
            at = now_s + LOCAL_HOP_S + TOKENIZE_S + TOKENIZE_TEXT_S * len(units)
            for u in units:
                self._counted_at[u.id] = at
            self._clock.at(at, self._counted, units)
        if ended:
            plan.ended(order.pull_id, empty=True, now_s=now_s)
        self.advance()

    def _counted(self, units: list[HeldUnit]) -> None:
        tokens = self._mesh.demand.tokens
        for unit in units:
            exact = tokens[int(unit.id)]
            del self._counted_at[unit.id]
            self.dispatch.counted(unit, 1, exact, exact * exact)
        self.advance()

    def _send(self, batch_id: int, batch: Batch) -> None:
        at = self._clock.now_s + LOCAL_HOP_S
        for u in batch.units:
            if not u.is_counted:
                at = max(at, self._counted_at[u.id])
        indices = [int(u.id) for u in batch.units]
        tokens = self._mesh.demand.tokens
        total = sum(tokens[i] for i in indices)
        self.batch_texts += len(indices)
        self.batch_tokens += total
        self._clock.at(at, self.hardware.run, Job(total, self._done, (batch_id, indices)))

    def _done(self, batch_id: int, indices: list[int]) -> None:
        answered_s = self._clock.now_s + QUEUED_S
        for i in indices:
            self._mesh.record.answered(i, answered_s)
        self._clock.after(LOCAL_HOP_S, self._heard, batch_id)

    def _heard(self, batch_id: int) -> None:
        self.dispatch.finished(batch_id, 1e9, self._clock.now_s)
        self.advance()


class Mesh:
    def __init__(self, clock: Clock, demand: Demand, record: Record, setting, rng: random.Random, put_backs: bool, pace: Pace | None = None) -> None:
        self.clock, self.demand, self.record = clock, demand, record
        self.broker = Broker(clock, rng)
        self.rng = rng
        self.digests = [f"{n:064x}" for n in range(setting.models)]
        self.lanes = [f"lane-{n}" for n in range(setting.models)]
        pace = pace or Pace(setting.bound_ms, 3 * setting.bound_ms, 2.0, 1.0)
        self.servers = [Worker(self, n, rng, pace) for n in range(setting.devices)]
        for w in self.servers:
            clock.at(rng.random() * 0.01, w.advance)

    def tell(self, note, sender):
        self.clock.after(hop_s(self.rng) + hop_s(self.rng), self.told, note, sender)

    def told(self, note, sender):
        now = self.clock.now_s
        for w in self.servers:
            if w is not sender:
                w.dispatch.plan.sibling_drained(note, now)

    def arrive(self, index: int) -> None:
        self.broker.publish(self.lanes[self.demand.models[index]], INTERACTIVE, index)
