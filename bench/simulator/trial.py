"""One run: a system, what is asked of it, and what came of that."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.simulator.clock import Clock
from bench.simulator.demand import Demand
from bench.simulator.fleet import Scene
from bench.simulator.hardware import BATCH_MS, TOKEN_US
from bench.simulator.pull import PullFleet
from bench.simulator.push import PushFleet
from bench.simulator.record import BAR_MS, Outcome, Record
from bench.simulator.routers import LeastOutstanding, RoundRobin, Router, TwoChoices, View, placement
from bench.simulator.setting import Setting, Stall
from shoal_common.limits import ACK_WAIT_S

VIEWS_MS = (0, 20, 100, 300)
AFTER_S = 2 * ACK_WAIT_S
"""A run goes on for so long after the last deadline, if anything is left."""


@dataclass(frozen=True)
class System:
    """Something that brings texts to devices."""

    name: str
    build: Callable[[Scene, Setting], PushFleet | PullFleet]
    is_pull: bool = False
    is_placed: bool = False
    """Whether each model is on some of the devices only."""


def _routed(scene: Scene, setting: Setting, router: Callable[[View], Router], age_ms: float) -> PushFleet:
    return PushFleet(scene, setting, router(View(scene.clock, setting.devices, age_ms / 1e3)))


def _round_robin(scene: Scene, setting: Setting) -> PushFleet:
    return PushFleet(scene, setting, RoundRobin(setting.devices))


def _least_outstanding(age_ms: float) -> System:
    def build(scene: Scene, setting: Setting) -> PushFleet:
        return _routed(scene, setting, lambda view: LeastOutstanding(view, setting.devices, scene.rng), age_ms)

    return System(f"least outstanding, view {age_ms:.0f} ms old", build)


def _two_choices(age_ms: float) -> System:
    def build(scene: Scene, setting: Setting) -> PushFleet:
        return _routed(scene, setting, lambda view: TwoChoices(view, setting.devices, scene.rng), age_ms)

    return System(f"two choices, view {age_ms:.0f} ms old", build)


def _affinity(age_ms: float) -> System:
    def build(scene: Scene, setting: Setting) -> PushFleet:
        held = placement(scene.demand.shares, setting.devices)
        return _routed(scene, setting, lambda view: LeastOutstanding(view, setting.devices, scene.rng, held), age_ms)

    return System(f"affinity, view {age_ms:.0f} ms old", build, is_placed=True)


def _affinity_in_turn(scene: Scene, setting: Setting) -> PushFleet:
    return PushFleet(scene, setting, RoundRobin(setting.devices, placement(scene.demand.shares, setting.devices)))


PULL = System("pull", lambda scene, setting: PullFleet(scene, setting, put_backs=False), is_pull=True)
PULL_WITH_PUT_BACKS = System(
    "pull with put-backs", lambda scene, setting: PullFleet(scene, setting, put_backs=True), is_pull=True
)
ROUND_ROBIN = System("round robin", _round_robin)
ROUTERS = (
    ROUND_ROBIN,
    *(_least_outstanding(age_ms) for age_ms in VIEWS_MS),
    *(_two_choices(age_ms) for age_ms in VIEWS_MS),
    *(_affinity(age_ms) for age_ms in VIEWS_MS),
    System("affinity, in turn", _affinity_in_turn, is_placed=True),
)
SYSTEMS = (PULL, PULL_WITH_PUT_BACKS, *ROUTERS)


@dataclass(frozen=True)
class Run:
    """What came of one run."""

    outcome: Outcome
    record: Record
    fleet: PushFleet | PullFleet


def run(system: System, setting: Setting, demand: Demand, seed: int, bar_ms: float = BAR_MS) -> Run:
    """Runs a system; it is given up as soon as the bar cannot be held."""
    clock = Clock()
    record = Record(clock, demand, setting.warm_s, bar_ms)
    scene = Scene(clock, demand, record, random.Random(seed))
    fleet = system.build(scene, setting)
    if isinstance(fleet, PullFleet):
        for fault in setting.faults:
            worker = fleet.workers[fault.device]
            if isinstance(fault, Stall):
                clock.at(fault.at_s, worker.stall, fault.seconds)
            else:
                clock.at(fault.at_s, worker.die, fault.back_after_s)
    busy: list[tuple[float, float]] = []

    def measure() -> None:
        busy.append((clock.now_s, sum(one.hardware.busy_s for one in fleet.computed)))

    clock.at(setting.warm_s, measure)
    clock.at(setting.seconds, measure)
    clock.run(demand.arrivals_s, fleet.arrive, setting.seconds + setting.deadline_s + AFTER_S)
    measure()
    p50_ms, p99_ms = record.percentiles_ms()
    batches = max(1, sum(one.batches for one in fleet.computed))
    (begin_s, before_s), (end_s, after_s) = busy[0], busy[min(1, len(busy) - 1)]
    outcome = Outcome(
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        busy_share=(after_s - before_s) / max(end_s - begin_s, 1e-9) / setting.devices,
        batch_texts=sum(one.texts for one in fleet.computed) / batches,
        batch_ms=BATCH_MS + sum(one.tokens for one in fleet.computed) * TOKEN_US / 1e3 / batches,
        texts_per_s=record.answered_count / setting.seconds,
    )
    return Run(outcome, record, fleet)
