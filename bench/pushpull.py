"""`pull_over_best_router`: load that four workers carry with p99 within the bar, by shared queue and by push routers.

Real processes: broker, gateway, sidecars and four simulated workers whose cost curve is a GPU's slowed thirty times,
and the bar with it, so that neither broker nor Python is what is measured (their share of a core is reported).
The push side is the same gateway with a router in place of the queue (bench/push_gateway.py): each worker has a queue
of its own and the same dynamic batching. Load is a share of the limit without fixed costs: texts a second at which the
devices' time goes into tokens alone. On the way to the knee every system sees the same arrivals.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import open_load, report
from bench.cluster import Cluster, running_cluster
from tests.support import sim
from tests.support.ports import free_port

SLOWED = 30
BATCH_MS = 4.0 * SLOWED
TOKEN_US = 2.0 * SLOWED
INTERACTIVE_MS = 20.0 * SLOWED
BAR_MS = 50.0 * SLOWED
JITTER = 0.05
WORKERS = 4
MODELS = 8
LOADS = [0.05 * step for step in range(1, 20)]
SECONDS = 30.0
VIEWS_MS = (0.0, 20.0, 100.0, 300.0)
BAR = 2.0


def systems(quick: bool) -> dict[str, dict[str, Any] | None]:
    """The systems by name: a router's settings, or None for the shared queue."""
    views = (20.0,) if quick else VIEWS_MS
    routers: dict[str, dict[str, Any] | None] = {"round robin": {"policy": "round_robin", "view_ms": 0.0}}
    for policy in ("least_outstanding", "power_of_two"):
        for view_ms in views:
            name = f"{policy.replace('_', ' ')}, view {view_ms:.0f} ms"
            routers[name] = {"policy": policy, "view_ms": view_ms * SLOWED}
    routers["affinity"] = {"policy": "affinity", "view_ms": 0.0}
    return {"pull": None, "pull, put-backs": None, **routers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer routers, shorter windows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--plots", type=Path, default=Path("build/plots"))
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name, router in systems(options.quick).items():
        found[name] = _knee(name, router, options)
        report.say(f"{name}: {found[name]['load']:.2f} of the limit")
    pull = max(found["pull"]["load"], found["pull, put-backs"]["load"])
    best = max(result["load"] for name, result in found.items() if not name.startswith("pull"))
    _plot(found, options.plots)
    report.result(
        "pull_over_best_router",
        pull / best if best else float("inf"),
        f">= {BAR}",
        models=options.models,
        seed=options.seed,
        systems=found,
    )


def _knee(name: str, router: dict[str, Any] | None, options: argparse.Namespace) -> dict[str, Any]:
    """The highest load of the grid with p99 within the bar, and what it looked like there."""
    with tempfile.TemporaryDirectory(prefix="shoal-pushpull-") as folder:
        with _system(Path(folder), name, router, options) as (cluster, address):
            tried: dict[float, dict[str, Any]] = {}

            def passes(step: int) -> bool:
                load = LOADS[step]
                tried[load] = _measure(cluster, address, load, options)
                report.say(f"  {name} at {load:.2f}: p99 {tried[load]['p99_ms']:.0f} ms")
                return tried[load]["p99_ms"] <= BAR_MS

            step = last_passing(passes, len(LOADS))
            load = LOADS[step] if step >= 0 else 0.0
            return {"load": load, "at_knee": tried.get(load), "tried": {f"{at:.2f}": tried[at] for at in sorted(tried)}}


def last_passing(passes: Callable[[int], bool], steps: int) -> int:
    """The last step of a run of passing ones, by bisection; -1 when the first fails."""
    low, high = -1, steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


class _system:  # noqa: N801 - reads as the context manager that it is
    """A cluster set up as one system, and the address of its gateway."""

    def __init__(self, folder: Path, name: str, router: dict[str, Any] | None, options: argparse.Namespace) -> None:
        self._folder, self._name, self._router, self._options = folder, name, router, options

    def __enter__(self) -> tuple[Cluster, str]:
        curve = {"batch_ms": BATCH_MS, "token_us": TOKEN_US}
        sim_file = sim.sim_file(self._folder, seed=self._options.seed, cost=curve, jitter=JITTER)
        self._running = running_cluster(sim_file, self._folder)
        cluster = self._running.__enter__()
        models = [f"m{n}" for n in range(self._options.models)]
        tuned = {"sim": {"cost": curve, "interactive_ms": INTERACTIVE_MS}}
        if self._router is None:
            cluster.register(*(sim.sim_profile(self._folder, name, pool="bench", tuned=tuned) for name in models))
            if "put-backs" in self._name:
                cluster.machine("m", sim_file, ["bench"] * WORKERS)
            else:  # A worker that is alone on its machine has nobody to put back to.
                for n in range(WORKERS):
                    cluster.machine(f"m{n}", sim_file, ["bench"])
            cluster.wait_ready(cluster.mesh.address, models, WORKERS)
            return cluster, cluster.mesh.address
        pools = [f"w{n}" for n in range(WORKERS)]
        names = [(f"{model}-{pool}", pool) for model in models for pool in pools]
        cluster.register(*(sim.sim_profile(self._folder, name, pool=pool, tuned=tuned) for name, pool in names))
        cluster.machine("m", sim_file, pools)
        cluster.wait_ready(cluster.mesh.address, [name for name, _ in names])
        address = f"127.0.0.1:{free_port()}"
        settings = {**self._router, "pools": pools, "seed": self._options.seed}
        cluster.push_gateway(address, settings)
        cluster.wait_ready(address, [name for name, _ in names])
        return cluster, address

    def __exit__(self, *raised) -> None:
        self._running.__exit__(*raised)


def _measure(cluster: Cluster, address: str, load: float, options: argparse.Namespace) -> dict[str, Any]:
    limit = WORKERS * 1e6 / (TOKEN_US * open_load.mean_tokens())
    plan = open_load.Plan(
        address,
        [f"m{n}" for n in range(options.models)],
        rate=load * limit,
        seconds=SECONDS / (3 if options.quick else 1),
        seed=options.seed,
        warm_up_s=4 * BAR_MS / 1e3,
    )
    before = cluster.cpu_seconds()
    measured = open_load.run(plan)
    after = cluster.cpu_seconds()
    wall_s = plan.seconds + 1.5 * plan.warm_up_s
    cores = {name: (after[name] - before.get(name, 0.0)) / wall_s for name in after}
    full_ms = INTERACTIVE_MS - BATCH_MS
    fill = measured["mean_batch_texts"] * TOKEN_US * open_load.mean_tokens() / 1e3 / full_ms
    busy = sum(measured["busy_by_worker"].values()) / WORKERS
    return {**measured, "batch_fill": fill, "busy_share": busy, "cores": cores, "most_cores": max(cores.values())}


def _plot(found: dict[str, dict[str, Any]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for name, result in found.items():
        points = [(float(load), tried["p99_ms"]) for load, tried in result["tried"].items()]
        is_pull = name.startswith("pull")
        loads, p99s_ms = zip(*points, strict=True)
        width, style = (2.5, "-") if is_pull else (1.0, "--")
        axes.plot(loads, p99s_ms, marker="o", markersize=3, label=name, linewidth=width, linestyle=style)
    axes.axhline(BAR_MS, color="grey", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("load, share of the limit without fixed costs")
    axes.set_ylabel(f"p99, ms (device slowed {SLOWED} times)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "pushpull.png", dpi=130)


if __name__ == "__main__":
    main()
