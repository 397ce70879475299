"""`pull_over_best_router`: load that simulated devices carry with p99 within 50 ms, pulled, and by the best router.

The worker's real decisions on a simulated clock (bench/simulator): 16 devices, two machines of eight; a batch costs
4 ms and 2 µs a token; texts of 256 tokens in the mean (lognormal, sigma 0.6). All systems are asked the same. A load
is a share of what the devices could do if a batch cost nothing of its own. What is assumed of routers stands in
bench/simulator/push.py. The figure is that of eight models with even demand, over all routers; the table has the
others. Routers that place models know each model's mean share of the demand beforehand.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import report
from bench.simulator import demand, knee, plots, trial
from bench.simulator.record import BAR_MS
from bench.simulator.setting import BATCH_BOUND_MS, Setting
from bench.simulator.trial import PULL, PULL_WITH_PUT_BACKS, ROUTERS, SYSTEMS

BAR = 2.0
PROCESSES = 2
MAIN = "8 models, even"
CASES = {
    "1 model": Setting(models=1),
    MAIN: Setting(models=8),
    "8 models, zipf": Setting(models=8, law="zipf"),
    "8 models, shifting": Setting(models=8, law="shifting", seconds=5.0),
    "32 models, even": Setting(models=32),
    "32 models, zipf": Setting(models=32, law="zipf"),
    "32 models, shifting": Setting(models=32, law="shifting", seconds=4.0),
}
QUICK_S = 1.5
FLEETS = (8, 32, 128, 256)
FLEET_GRID = tuple(load for load in knee.GRID if 0.6 <= load <= 0.9)
CURVE_LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85)
CURVE_SYSTEMS = (
    PULL_WITH_PUT_BACKS.name,
    "round robin",
    "two choices, view 0 ms old",
    "two choices, view 100 ms old",
    "affinity, view 0 ms old",
    "affinity, view 20 ms old",
)
QUICK_SYSTEMS = (PULL.name, *CURVE_SYSTEMS)
QUICK_CASES = ("1 model", MAIN, "8 models, shifting")


@dataclass(frozen=True)
class Task:
    """One search, or one run."""

    system: str
    setting: Setting
    seed: int
    grid: tuple[float, ...] = knee.GRID
    trace: str = ""
    load: float | None = None
    """Only this load, to the end; None searches for the knee."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer routers and cases, shorter runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", default="", help="a CSV file (second,model,tokens) that is replayed beside")
    parser.add_argument("--plots", type=Path, default=Path("build/plots"))
    options = parser.parse_args()
    report.say(f"seed {options.seed}")
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        cases = _cases(options.trace, quick=options.quick)
        systems = QUICK_SYSTEMS if options.quick else tuple(system.name for system in SYSTEMS)
        table = _table(pool, cases, systems, options)
        repeats = _repeats(pool, table, options)
        scaling = _scaling(pool, options)
        curves = {case: _curves(pool, cases[case], options) for case in (MAIN, "8 models, shifting")}
    loads = {case: {system: row["load"] for system, row in rows.items()} for case, rows in table.items()}
    plots.knees(loads, options.plots / "sim_knees.png")
    for case, lines in curves.items():
        plots.latencies(lines, case, options.plots / f"sim_p99_{case.replace(', ', '_').replace(' ', '_')}.png")
    ratios = {case: _ratios(rows) for case, rows in loads.items()}
    at_knee = table[MAIN][PULL_WITH_PUT_BACKS.name]
    report.result(
        "pull_over_best_router",
        statistics.median(one["over_best_router"] for one in repeats),
        f">= {BAR}",
        seed=options.seed,
        spread=report.spread([one["over_best_router"] for one in repeats]),
        over_best_router_where_all_devices_hold_all_models=report.spread(
            [one["over_best_router_on_shared_devices"] for one in repeats]
        ),
        over_best_by_case=ratios,
        never_below_the_best=all(ratio["over_best_router"] >= 1 for ratio in ratios.values()),
        busy_share_at_knee=at_knee.get("busy_share"),
        batch_fill_at_knee=at_knee.get("batch_ms", 0.0) / BATCH_BOUND_MS,
        scaling=scaling,
        bar_ms=BAR_MS,
        batch_bound_ms=BATCH_BOUND_MS,
        table=table,
    )


def _cases(trace: str, *, quick: bool) -> dict[str, tuple[Setting, str]]:
    settings = {name: (CASES[name], "") for name in (QUICK_CASES if quick else CASES)}
    if trace:
        settings["trace"] = (Setting(models=demand.models_in(trace)), trace)
    if quick:
        settings = {name: (replace(setting, seconds=QUICK_S), path) for name, (setting, path) in settings.items()}
    return settings


def _table(pool: Any, cases: dict[str, tuple[Setting, str]], systems: Sequence[str], options: Any) -> dict[str, dict]:
    """By case and system: the knee, and how things are there."""
    keys = [(case, system) for system in systems for case in reversed(cases)]
    tasks = [Task(system, cases[case][0], options.seed, trace=cases[case][1]) for case, system in keys]
    table: dict[str, dict] = {case: {} for case in cases}
    for (case, system), row in zip(keys, pool.imap(_search, tasks, chunksize=1), strict=True):
        table[case][system] = row
        report.say(f"{case}: {system}: {row['load']:.3f}")
    return table


def _repeats(pool: Any, table: dict[str, dict], options: Any) -> list[dict[str, float]]:
    """The main case's ratios, with other seeds for what comes near the best."""
    rows = table[MAIN]
    found = [_ratios({system: row["load"] for system, row in rows.items()})]
    shared = [router.name for router in ROUTERS if not router.is_placed and router.name in rows]
    placed = [router.name for router in ROUTERS if router.is_placed and router.name in rows]
    near = [name for group in (shared, placed) for name in sorted(group, key=lambda name: -rows[name]["load"])[:2]]
    setting = _cases("", quick=options.quick)[MAIN][0]
    for seed in range(options.seed + 1, options.seed + (2 if options.quick else 3)):
        names = [PULL_WITH_PUT_BACKS.name, *near]
        loads = pool.map(_search, [Task(name, setting, seed) for name in names], chunksize=1)
        found.append(_ratios({name: row["load"] for name, row in zip(names, loads, strict=True)}))
    return found


def _scaling(pool: Any, options: Any) -> dict[str, Any]:
    """Texts a second at the knee by number of devices, and how near the largest fleet is to a multiple of the least."""
    fleets = FLEETS[:2] if options.quick else FLEETS
    tasks = [
        Task(PULL.name, Setting(devices=devices, seconds=1.2), options.seed, FLEET_GRID) for devices in fleets[::-1]
    ]
    rows = dict(zip(fleets[::-1], pool.map(_search, tasks, chunksize=1), strict=True))
    report.say(f"scaling: { {devices: row['load'] for devices, row in rows.items()} }")
    least, most = fleets[0], fleets[-1]
    return {
        "linear": rows[most]["texts_per_s"] / max(rows[least]["texts_per_s"], 1e-9) / (most / least),
        "by_devices": {devices: rows[devices] for devices in fleets},
    }


def _curves(pool: Any, case: tuple[Setting, str], options: Any) -> dict[str, list[tuple[float, float]]]:
    loads = CURVE_LOADS[::3] if options.quick else CURVE_LOADS
    setting = replace(case[0], seconds=QUICK_S)
    keys = [(system, load) for system in CURVE_SYSTEMS for load in loads]
    rows = pool.map(_search, [Task(system, setting, options.seed, load=load) for system, load in keys], chunksize=1)
    lines: dict[str, list[tuple[float, float]]] = {system: [] for system in CURVE_SYSTEMS}
    for (system, load), row in zip(keys, rows, strict=True):
        lines[system].append((load, row["p99_ms"]))
    return lines


def _ratios(loads: dict[str, float]) -> dict[str, float]:
    """Pull with put-backs over the best router, and over the best of those that let all devices hold all models."""
    pull = loads[PULL_WITH_PUT_BACKS.name]
    routed = {router.name: loads[router.name] for router in ROUTERS if router.name in loads}
    shared = {router.name: routed[router.name] for router in ROUTERS if router.name in routed and not router.is_placed}
    return {
        "over_best_router": pull / max(*routed.values(), 1e-9),
        "over_best_router_on_shared_devices": pull / max(*shared.values(), 1e-9),
    }


def _search(task: Task) -> dict[str, float]:
    """A task's load and outcome."""
    system = next(one for one in SYSTEMS if one.name == task.system)
    if task.load is None:
        found = knee.find(system, task.setting, task.seed, task.grid, task.trace)
        load, outcome = found.load, found.outcome
    else:
        asked = knee.demand_at(task.setting, task.load, task.seed, task.trace)
        load, outcome = task.load, trial.run(system, task.setting, asked, task.seed, bar_ms=float("inf")).outcome
    return {"load": load, **(asdict(outcome) if outcome else {"texts_per_s": 0.0})}


if __name__ == "__main__":
    main()
