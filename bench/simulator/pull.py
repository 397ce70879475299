"""Workers that pull: the real decisions, around a simulated broker, sidecar and device."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

from bench.simulator.broker import Broker, Message
from bench.simulator.exchange import Exchange, Grants
from bench.simulator.fleet import Computed, Scene
from bench.simulator.hardware import BATCH_MS, TOKEN_US, Hardware, Job
from bench.simulator.latencies import LOCAL_HOP_S, QUEUED_S, TOKENIZE_S, TOKENIZE_TEXT_S, hop_s
from bench.simulator.setting import Setting
from shoal_common.limits import ACK_WAIT_S
from shoal_common.profile import Cost, Tuned
from shoal_worker.decisions import pace, put_back
from shoal_worker.decisions.batching import Batch
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.decisions.pull_plan import Order
from shoal_worker.decisions.put_back import Standing, Surplus
from shoal_worker.decisions.unit import INTERACTIVE, HeldUnit, Stage

COST = Cost(batch_ms=BATCH_MS, token_us=TOKEN_US)
POST_GAP_S = 0.002
"""Posts to the exchange are at least so far apart, as in the worker."""
SHIFT_MS = 2.0
SHIFT_SHARE = 0.1
"""A state whose times moved by no more than this is not posted again, as in the worker."""
REPORT_PERIOD_S = 0.25
"""The scheduler tells so often for which lanes a worker is idle."""


class PullFleet:
    """Workers, their machines' exchanges, and the broker."""

    def __init__(self, scene: Scene, setting: Setting, *, put_backs: bool) -> None:
        self.scene = scene
        self.setting = setting
        self.put_backs = put_backs
        self.broker = Broker(scene.clock, scene.rng)
        self.digests = [f"{model:064x}" for model in range(setting.models)]
        self.lanes = [f"lane-{model}" for model in range(setting.models)]
        self.machines = [Machine(self) for _ in range(-(-setting.devices // setting.machine_devices))]
        self.workers = [
            Worker(self, number, self.machines[number // setting.machine_devices]) for number in range(setting.devices)
        ]
        self.computed = [worker.computed for worker in self.workers]
        self.moves = 0
        """Units that went from one worker to a sibling,"""
        self.returns = 0
        """and those that went back to the queue."""
        for worker in self.workers:
            scene.clock.at(scene.rng.random() * 0.01, worker.begin)
        if put_backs:
            scene.clock.at(REPORT_PERIOD_S, self._report)

    def arrive(self, index: int) -> None:
        """A text comes to the broker."""
        self.broker.publish(self.lanes[self.scene.demand.models[index]], INTERACTIVE, index)

    def tell(self, note: DrainNote, sender: Worker) -> None:
        """A worker tells the others of a drain."""
        wait_s = hop_s(self.scene.rng) + hop_s(self.scene.rng)
        self.scene.clock.after(wait_s, self._told, note, sender)

    def _told(self, note: DrainNote, sender: Worker) -> None:
        now_s = self.scene.clock.now_s
        for worker in self.workers:
            if worker is not sender:
                worker.dispatch.plan.sibling_drained(note, now_s)

    def _report(self) -> None:
        """A worker that is idle at this moment is idle for all lanes."""
        idle = {worker.machine for worker in self.workers if worker.is_idle}
        for machine in self.machines:
            others_idle = bool(idle - {machine})
            machine.idle_lanes = frozenset(self.lanes) if others_idle else frozenset()
        self.scene.clock.after(REPORT_PERIOD_S, self._report)


class Machine:
    """A machine's sidecar: its exchange, and the wires between it and the workers."""

    def __init__(self, fleet: PullFleet) -> None:
        self._fleet = fleet
        self._clock = fleet.scene.clock
        self.exchange = Exchange()
        self.workers: dict[int, Worker] = {}
        self.units: dict[str, HeldUnit] = {}
        """What the sidecar keeps of each unit, whoever owns it."""
        self.idle_lanes: frozenset[str] = frozenset()

    def carry_out(self, grants: Grants) -> None:
        """Tells old and new owners."""
        for number, moved in grants.items():
            units = [self._copied(unit) for unit, _ in moved]
            self._fleet.moves += len(units)
            self._clock.after(LOCAL_HOP_S, self.workers[number].granted, units)
            for unit, former in moved:
                if former != number and (owner := self.workers.get(former)) is not None:
                    self._clock.after(LOCAL_HOP_S, owner.taken, unit)

    def _copied(self, unit_id: str) -> HeldUnit:
        """A unit as its new owner comes to know it."""
        unit = copy.copy(self.units[unit_id])
        unit.stage, unit.offered_s = Stage.PARKED, None
        self.units[unit_id] = unit
        return unit


class Worker:
    """One device's: the shell around `Dispatch` that `worker.py` is in the mesh."""

    def __init__(self, fleet: PullFleet, number: int, machine: Machine) -> None:
        self._fleet = fleet
        self._clock = fleet.scene.clock
        self._number = number
        self.machine = machine
        self._hardware = Hardware(self._clock, fleet.scene.rng)
        self.computed = Computed(self._hardware)
        self.is_alive = True
        self._life = 0
        self._start_over()

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.is_alive and not self._held

    def begin(self) -> None:
        """Attaches to its sidecar, and starts to pull."""
        self.machine.workers[self._number] = self
        self.machine.carry_out(self.machine.exchange.attached(self._number, self._clock.now_s))
        self._advance()

    def stall(self, seconds: float) -> None:
        """The device starts nothing for a while."""
        self._hardware.stall(seconds)

    def die(self, back_after_s: float) -> None:
        """The worker is killed, its device with it, and comes back."""
        now_s = self._clock.now_s
        self.is_alive = False
        self._life += 1
        self._hardware.reset()
        self.machine.workers.pop(self._number, None)
        lost = list(self._held.values())
        if self._fleet.put_backs:
            self.machine.carry_out(self.machine.exchange.gone(self._number, now_s))
            lost = [unit for unit in lost if self.machine.exchange.owner(unit.id) in (None, self._number)]
        for unit in lost:
            self._clock.after(ACK_WAIT_S, self._deliver_again, unit)
        self._clock.after(back_after_s, self._come_back)

    def _come_back(self) -> None:
        self._start_over()
        self.is_alive = True
        self.begin()

    def _start_over(self) -> None:
        scene, setting = self._fleet.scene, self._fleet.setting
        gpu = pace.of_device("sim:0")
        rng = random.Random(scene.rng.random())
        self.dispatch = Dispatch(1, gpu, rng, self._clock.now_s)
        tuned = Tuned(cost=COST, interactive_ms=setting.bound_ms)
        lanes = dict(zip(self._fleet.lanes, self._fleet.digests, strict=True))
        self.dispatch.serve(dict.fromkeys(self._fleet.digests, tuned), lanes)
        self._held: dict[str, HeldUnit] = {}
        self._counted_s: dict[str, float] = {}
        self._wakes = 0
        self._grants_seen = 0
        self._posted_s = float("-inf")
        self._is_posting = False
        self._state = Standing(float("inf"), 0.0)
        self._state_s = 0.0
        self._offered: dict[HeldUnit, float] = {}
        self._over: set[HeldUnit] = set()

    def _deliver_again(self, unit: HeldUnit) -> None:
        """The broker heard no ack and no sign of work on a unit in time, unless it did."""
        if self._fleet.scene.record.is_over(int(unit.id)):
            return  # Whoever took it over has acked it.
        owner = self.machine.exchange.owner(unit.id) if self._fleet.put_backs else None
        if owner is not None and owner in self.machine.workers:
            return  # Whoever has it now says that it is worked on.
        self._fleet.broker.publish(unit.lane, unit.work_class, int(unit.id), unit.put_backs, unit.deliveries)

    # What the broker brings.

    def pulled(self, order: Order, messages: list[Message], ended: bool) -> None:
        """A pull's answer."""
        if not self.is_alive:
            for message in messages:
                unit = self._unit(order, message)
                self._clock.after(ACK_WAIT_S, self._deliver_again, unit)
            return
        now_s, plan = self._clock.now_s, self.dispatch.plan
        waits = order.waits
        units = []
        for message in messages:
            waited_s = now_s - message.published_s
            plan.delivered(order.lane, order.work_class, waits, message.pending, now_s, waited_s)
            unit = self._unit(order, message)
            if self._admit(unit):
                units.append(unit)
        if units:
            self.dispatch.admitting(units, now_s)
            counted_s = now_s + LOCAL_HOP_S + TOKENIZE_S + TOKENIZE_TEXT_S * len(units)
            for unit in units:
                self._counted_s[unit.id] = counted_s
            self._clock.at(counted_s, self._counted, units, self._life)
        if ended:
            plan.ended(order.pull_id, empty=True, now_s=now_s)
        self._advance()

    def peeked(self, order: Order, is_something: bool) -> None:
        """A peek's answer."""
        if not self.is_alive:
            return
        if is_something:
            self.dispatch.plan.peeked(order.pull_id, self._clock.now_s, found=True)
        else:
            self.dispatch.plan.ended(order.pull_id, empty=True, now_s=self._clock.now_s)
        self._advance()

    def _unit(self, order: Order, message: Message) -> HeldUnit:
        index, setting = message.number, self._fleet.setting
        demand = self._fleet.scene.demand
        guess = demand.guesses[index]
        unit = HeldUnit(
            str(index),
            "",
            "",
            order.lane,
            order.work_class,
            self._fleet.digests[demand.models[index]],
            demand.arrivals_s[index] + setting.deadline_s,
            self._clock.now_s,
            message.published_s,
            "",
            message.deliveries,
            b"",
            1,
            guess,
            guess * guess,
        )
        unit.put_backs = message.put_backs
        return unit

    def _admit(self, unit: HeldUnit) -> bool:
        """Takes a unit into hand, unless it or a sibling has it already."""
        if self._fleet.put_backs:
            if self.machine.exchange.admit(self._number, unit.id) != self._number or unit.id in self._held:
                return False
            self.machine.units[unit.id] = unit
        self._held[unit.id] = unit
        return True

    # What the sidecar brings.

    def _counted(self, units: Sequence[HeldUnit], life: int) -> None:
        if self._fleet.put_backs:
            self.machine.carry_out(self.machine.exchange.tokenized([unit.id for unit in units], self._clock.now_s))
        if life != self._life:
            return
        tokens = self._fleet.scene.demand.tokens
        for unit in units:
            self._counted_s.pop(unit.id, None)
            if self._held.get(unit.id) is unit and unit.stage in (Stage.ADMITTING, Stage.READY, Stage.RUNNING):
                exact = tokens[int(unit.id)]
                self.dispatch.counted(unit, 1, exact, exact * exact)
        self._advance()

    def granted(self, units: Sequence[HeldUnit]) -> None:
        """Units are this worker's from now on."""
        self._grants_seen += 1
        if not self.is_alive:
            return
        tokens = self._fleet.scene.demand.tokens
        for unit in units:
            unit.tokens, unit.squared_tokens = tokens[int(unit.id)], tokens[int(unit.id)] ** 2
            self._held[unit.id] = unit
            self.dispatch.granted(unit)
        self._advance()

    def taken(self, unit_id: str) -> None:
        """A unit is a sibling's."""
        unit = self._held.pop(unit_id, None)
        if unit is not None:
            self.dispatch.taken(unit)

    def _send(self, batch_id: int, batch: Batch) -> None:
        start_s = self._clock.now_s + LOCAL_HOP_S
        for unit in batch.units:
            if not unit.is_counted:
                start_s = max(start_s, self._counted_s.get(unit.id, 0.0))
        self._clock.at(start_s, self._run, batch_id, [unit.id for unit in batch.units], self._life)

    def _run(self, batch_id: int, units: list[str], life: int) -> None:
        """A batch comes to the sidecar."""
        if life != self._life:
            return
        if self._fleet.put_backs and (strange := self.machine.exchange.claim(self._number, units)):
            self._clock.after(LOCAL_HOP_S, self._refused, batch_id, strange, life)
            return
        tokens = self._fleet.scene.demand.tokens
        indices = [int(unit) for unit in units]
        total = sum(tokens[index] for index in indices)
        self.computed.add(len(indices), total)
        self._hardware.run(Job(total, self._done, (batch_id, units, life)))

    def _refused(self, batch_id: int, strange: list[str], life: int) -> None:
        if life != self._life:
            return
        batch = self.dispatch.refused(batch_id, self._clock.now_s)
        for unit in batch.units if batch else ():
            if unit.stage is Stage.RUNNING:
                if unit.id in strange:
                    self._held.pop(unit.id, None)
                else:
                    self.dispatch.return_unit(unit)
        self._advance()

    def _done(self, batch_id: int, units: list[str], life: int) -> None:
        """The device has computed a batch."""
        if life != self._life:
            return
        if self._fleet.put_backs:
            self.machine.exchange.forget(self._number, units)
            for unit in units:
                self.machine.units.pop(unit, None)
        answered_s = self._clock.now_s + QUEUED_S
        record = self._fleet.scene.record
        for unit in units:
            record.answered(int(unit), answered_s)
            self._held.pop(unit, None)
        self._clock.after(LOCAL_HOP_S, self._heard, batch_id, life)

    def _heard(self, batch_id: int, life: int) -> None:
        if life == self._life:
            now_s = self._clock.now_s
            self.dispatch.finished(batch_id, float("inf"), now_s, now_s - LOCAL_HOP_S)
            self._advance()

    # What is done about it.

    def _advance(self) -> None:
        steps = self.dispatch.advance(self._clock.now_s)
        for unit in steps.expired:
            self._fleet.scene.record.expired(int(unit.id))
            self._let_go(unit)
        for batch_id, batch in steps.batches:
            self._send(batch_id, batch)
        for order in steps.pulls:
            self._fleet.broker.pull(order, self)
        for note in steps.notes:
            self._fleet.tell(note, self)
        self._wakes += 1
        if steps.wake_in_s is not None:
            self._clock.after(steps.wake_in_s, self._wake, self._wakes, self._life)
        if self._fleet.put_backs and not self._is_posting:
            wait_s = self._posted_s + POST_GAP_S - self._clock.now_s
            if wait_s > 0:
                self._is_posting = True
                self._clock.after(wait_s, self._post_late, self._life)
            else:
                self._post()

    def _wake(self, number: int, life: int) -> None:
        if number == self._wakes and life == self._life:
            self._advance()

    def _let_go(self, unit: HeldUnit) -> None:
        self._held.pop(unit.id, None)
        if self._fleet.put_backs:
            self.machine.exchange.forget(self._number, [unit.id])

    # What siblings and the queue are told.

    def _post_late(self, life: int) -> None:
        if life == self._life:
            self._is_posting = False
            self._post()

    def _post(self) -> None:
        now_s = self._clock.now_s
        standing = self.dispatch.standing(now_s)
        aged_ms = max(0.0, self._state.free_in_ms - (now_s - self._state_s) * 1e3)
        if (
            bool(standing.room_ms) != bool(self._state.room_ms)
            or _moved(standing.room_ms, self._state.room_ms)
            or _moved(aged_ms, standing.free_in_ms)
        ):
            self._state, self._state_s = standing, now_s
            self._posted_s = now_s
            self._clock.after(LOCAL_HOP_S, self._posted, standing, self._grants_seen, self._life)
        surplus = self.dispatch.surplus(now_s)
        self._post_offer(surplus)
        if self.machine.idle_lanes:
            self._put_back(surplus)

    def _posted(self, standing: Standing, grants_seen: int, life: int) -> None:
        if life == self._life:
            now_s = self._clock.now_s
            exchange = self.machine.exchange
            self.machine.carry_out(
                exchange.post(self._number, standing.free_in_ms, standing.room_ms, grants_seen, now_s)
            )

    def _post_offer(self, surplus: Sequence[Surplus]) -> None:
        now_s = self._clock.now_s
        over = {one.unit for one in surplus}
        for unit in self._over - over:
            unit.offered_s = None
        for unit in over - self._over:
            unit.offered_s = now_s
        self._over = over
        standing = {unit: start_s for unit, start_s in self._offered.items() if unit.stage is Stage.READY}
        if standing.keys() != over or any(
            _moved(max(0.0, (standing[one.unit] - now_s) * 1e3), one.starts_in_ms) for one in surplus
        ):
            offered = [(one.unit.id, one.cost_ms, one.starts_in_ms) for one in surplus]
            standing = {one.unit: now_s + one.starts_in_ms / 1e3 for one in surplus}
            self._posted_s = now_s
            self._clock.after(LOCAL_HOP_S, self._offer, offered, self._life)
        self._offered = standing

    def _offer(self, offered: list[tuple[str, float, float]], life: int) -> None:
        if life == self._life:
            self.machine.carry_out(self.machine.exchange.offer(self._number, offered, self._clock.now_s))

    def _put_back(self, surplus: Sequence[Surplus]) -> None:
        now_s = self._clock.now_s
        for unit in put_back.to_queue(surplus, self.machine.idle_lanes, self.dispatch.pace, now_s):
            if self.machine.exchange.forget(self._number, [unit.id]):
                self._fleet.returns += 1
                self._held.pop(unit.id, None)
                self.dispatch.taken(unit)
                self._clock.after(
                    hop_s(self._fleet.scene.rng),
                    self._fleet.broker.publish,
                    unit.lane,
                    unit.work_class,
                    int(unit.id),
                    unit.put_backs + 1,
                )


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > max(SHIFT_MS, SHIFT_SHARE * max(before, after))
