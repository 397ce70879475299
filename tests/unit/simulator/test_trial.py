"""Runs: the same for the same seed, nothing lost whatever fails, right where it can be worked out by hand."""

from __future__ import annotations

import random

import pytest

from bench.simulator import hardware, knee
from bench.simulator.demand import Demand
from bench.simulator.latencies import HOP_S, LOCAL_HOP_S, QUEUED_S, ROUTED_S, TOKENIZE_S, TOKENIZE_TEXT_S
from bench.simulator.pull import PullFleet
from bench.simulator.setting import Death, Setting, Stall
from bench.simulator.trial import PULL, PULL_WITH_PUT_BACKS, ROUND_ROBIN, ROUTERS, System, run

FOREVER_MS = float("inf")
SMALL = Setting(devices=4, machine_devices=4, models=4, seconds=0.8, warm_s=0.2)


def at(system: System, setting: Setting, load: float, seed: int = 1):
    return run(system, setting, knee.demand_at(setting, load, seed), seed, FOREVER_MS)


@pytest.mark.parametrize("system", [PULL_WITH_PUT_BACKS, *ROUTERS[:2]], ids=lambda system: system.name)
def test_the_same_seed_gives_the_same(system: System) -> None:
    outcome = at(system, SMALL, 0.5).outcome
    assert outcome == at(system, SMALL, 0.5).outcome
    assert outcome != at(system, SMALL, 0.5, seed=2).outcome


@pytest.mark.parametrize("system", [PULL, PULL_WITH_PUT_BACKS, *ROUTERS], ids=lambda system: system.name)
def test_every_text_is_answered_once(system: System) -> None:
    record = at(system, SMALL, 0.4).record
    assert record.lost_count == record.repeats == record.expired_count == 0


@pytest.mark.parametrize("system", [PULL, PULL_WITH_PUT_BACKS], ids=lambda system: system.name)
def test_nothing_is_lost_when_workers_die_and_devices_stall(system: System) -> None:
    seed = random.randrange(1 << 20)
    rng = random.Random(seed)
    faults = tuple(
        Death(device, rng.uniform(0.1, 0.8), rng.choice([0.01, 0.3, 2.0]))
        if rng.random() < 0.7
        else Stall(device, rng.uniform(0.1, 0.8), 0.2)
        for device in range(8)
    )
    setting = Setting(devices=8, machine_devices=4, models=4, seconds=1.0, warm_s=0.1, faults=faults)
    record = at(system, setting, 0.4, seed).record
    assert record.lost_count == record.expired_count == record.repeats == 0, f"seed {seed}: {faults}"


def test_what_expires_is_counted_and_not_run() -> None:
    setting = Setting(
        devices=2, machine_devices=1, models=2, seconds=0.5, warm_s=0.1, deadline_s=1.0, faults=(Death(0, 0.2, 9.0),)
    )
    done = at(PULL, setting, 0.3)
    record = done.record
    assert record.expired_count > 0, "those of the dead worker come again after their deadline"
    assert record.lost_count == 0
    assert record.answered_count + record.expired_count == len(knee.demand_at(setting, 0.3, 1))


def test_units_that_came_to_a_busy_device_go_to_an_idle_sibling_and_are_answered_sooner() -> None:
    setting = Setting(devices=8, machine_devices=8, models=8, seconds=2.0, warm_s=0.1)
    without, with_them = at(PULL, setting, 0.05), at(PULL_WITH_PUT_BACKS, setting, 0.05)
    assert isinstance(without.fleet, PullFleet) and isinstance(with_them.fleet, PullFleet)
    assert without.fleet.moves == 0 < with_them.fleet.moves
    assert with_them.outcome.p99_ms < without.outcome.p99_ms


def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "JITTER_SIGMA", 0.0)
    monkeypatch.setattr(hardware, "SPEED_SIGMA", 0.0)


def two_texts(first_s: float) -> Demand:
    """Of 1,000 tokens, that come a millisecond apart: 6 ms each."""
    return Demand([first_s, first_s + 0.001], [0, 0], [1_000, 1_000], [1_000, 1_000], [1.0])


def test_two_texts_on_one_routed_device_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    exact(monkeypatch)
    setting = Setting(devices=1, models=1, seconds=1.0, warm_s=0.0)
    outcome = run(ROUND_ROBIN, setting, two_texts(0.1), 1, FOREVER_MS).outcome
    assert outcome.p99_ms == pytest.approx(12.0 - 1.0 + ROUTED_S * 1e3)
    assert outcome.busy_share == pytest.approx(0.012 / 0.112)  # It ends with the last answer.
    assert (outcome.batch_texts, outcome.batch_ms) == (1.0, 6.0)


def test_a_text_that_comes_to_idle_workers_is_pulled_tokenized_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    exact(monkeypatch)
    setting = Setting(devices=2, machine_devices=2, models=1, seconds=1.0, warm_s=0.0)
    outcome = run(PULL, setting, two_texts(0.1), 1, FOREVER_MS).outcome
    beside_s = LOCAL_HOP_S + TOKENIZE_S + TOKENIZE_TEXT_S + QUEUED_S
    least_ms, most_ms = (6.0 + (hop_s + beside_s) * 1e3 for hop_s in HOP_S)
    assert least_ms <= outcome.p50_ms <= outcome.p99_ms <= most_ms
    assert outcome.batch_texts == 1.0


def test_pull_carries_more_than_round_robin_where_devices_hold_several_models() -> None:
    setting = Setting(devices=8, machine_devices=8, models=8, seconds=1.0, warm_s=0.2)
    grid = (0.2, 0.4, 0.6)
    pulled, routed = (knee.find(system, setting, 1, grid) for system in (PULL_WITH_PUT_BACKS, ROUND_ROBIN))
    assert pulled.load == 0.6 and routed.load <= 0.2
    assert pulled.outcome is not None and pulled.outcome.busy_share > 0.9


def test_a_run_that_cannot_hold_the_bar_is_given_up() -> None:
    done = run(ROUND_ROBIN, SMALL, knee.demand_at(SMALL, 0.95, 1), 1)
    assert done.record.is_given_up and not done.outcome.holds(50.0)
