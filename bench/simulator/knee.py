"""The knee: the highest load at which p99 is within the bar, on a grid, by bisection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.simulator import demand as demands
from bench.simulator.demand import Demand
from bench.simulator.record import BAR_MS, Outcome
from bench.simulator.setting import Setting
from bench.simulator.trial import System, run

GRID = tuple(round(0.025 * step, 3) for step in range(1, 39))
"""Shares of what the devices could do if a batch cost nothing of its own."""


@dataclass(frozen=True)
class Knee:
    """Where a system ends; load 0 and no outcome where it never holds the bar."""

    load: float
    outcome: Outcome | None


def find(system: System, setting: Setting, seed: int, grid: Sequence[float] = GRID, trace: str = "") -> Knee:
    """The knee of a system, every system with the same seed being asked the same. p99 is taken to grow with load."""
    low, high = 0, len(grid)
    best = Knee(0.0, None)
    while low < high:
        middle = (low + high) // 2
        outcome = run(system, setting, demand_at(setting, grid[middle], seed, trace), seed).outcome
        if outcome.holds(BAR_MS):
            best, low = Knee(grid[middle], outcome), middle + 1
        else:
            high = middle
    return best


def demand_at(setting: Setting, load: float, seed: int, trace: str = "") -> Demand:
    """What is asked at a load: by the setting's law, or as a trace has it."""
    texts_per_s = setting.texts_per_s(load)
    if trace:
        return demands.replay(trace, texts_per_s, setting.seconds, seed)
    return demands.poisson(setting.law, setting.models, texts_per_s, setting.seconds, seed)
