"""One run: a system, what it is asked, and what came of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from bench.simulator import demand as demands
from bench.simulator.clock import Clock
from bench.simulator.demand import MEAN_TOKENS
from bench.simulator.hardware import BATCH_MS, TOKEN_US
from bench.simulator.push import Servers
from bench.simulator.record import BAR_MS, BAR_SHARE, Outcome, Record
from bench.simulator.routers import LeastOutstanding, RoundRobin, TwoChoices, View, placement

WARM_S = 0.5
AFTER_S = 1.0


@dataclass(frozen=True)
class Setting:
    devices: int = 16
    models: int = 8
    law: str = "even"
    seconds: float = 4.0
    bound_ms: float = 20.0
    machine: int = 8


def texts_per_s(load: float, devices: int) -> float:
    return load * devices * 1e6 / (TOKEN_US * MEAN_TOKENS)


def run(system: str, setting: Setting, load: float, seed: int, **kw) -> Outcome:
    demand = demands.poisson(setting.law, setting.models, texts_per_s(load, setting.devices), setting.seconds, seed)
    clock = Clock()
    record = Record(clock, demand, WARM_S)
    rng = random.Random(seed * 1000 + 7)
    kind, _, age = system.partition("@")
    view = View(clock, setting.devices, float(age or 0) / 1e3)
    if kind in ("pull", "pull+"):
        from bench.simulator.pull import Mesh
        mesh = Mesh(clock, demand, record, setting, rng, put_backs=kind == "pull+", **kw)
    else:
        if kind == "rr":
            router = RoundRobin(setting.devices)
        elif kind == "lor":
            router = LeastOutstanding(view, setting.devices, rng)
        elif kind == "p2c":
            router = TwoChoices(view, setting.devices, rng)
        else:
            router = LeastOutstanding(view, setting.devices, rng, placement(demand.shares, setting.devices))
        mesh = Servers(clock, demand, record, router, setting.devices, setting.bound_ms, rng)
    clock.run(demand.arrivals_s, mesh.arrive, setting.seconds + AFTER_S)
    lat = record.latencies_ms()
    servers = mesh.servers
    hw = [s.hardware for s in servers]
    batches = max(1, sum(h.batches for h in hw))
    p50, p99 = np.percentile(lat, [50, 100*BAR_SHARE], method="lower") if not record.overloaded else (np.inf, np.inf)
    return Outcome(
        float(p50), float(p99), sum(h.busy_s for h in hw) / clock.now_s / len(hw),
        sum(s.batch_texts for s in servers) / batches,
        BATCH_MS + sum(s.batch_tokens for s in servers) * TOKEN_US / 1e3 / batches,
        record.answers, not record.overloaded and float(p99) <= BAR_MS)
