"""`p99_ratio`: a tenant's p99 while another floods the mesh at 100 times its rate, over its p99 while both are quiet.

Two tenants with tokens of their own call one model on two simulated devices, whose cost curve is a GPU's slowed ninety
times, so that neither broker nor Python is what is measured (their share of a core is reported). The flood is an open
loop: what is refused is not sent again. Reported beside it: the p99 of the tenant alone, what of the flood was refused,
and what it got all the same: its fair share, and whatever the other leaves.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench import mesh, open_load, report
from shoal_common import tokens
from shoal_common.tokens import TokenEntry
from shoal_supervisor.embedded import EmbeddedMesh
from shoal_worker.decisions import pace
from tests.support import sim

SLOWED = 90
BATCH_MS = 4.0 * SLOWED
TOKEN_US = 2.0 * SLOWED
INTERACTIVE_MS = pace.GPU.interactive_ms * SLOWED
BULK_MS = pace.GPU.bulk_ms * SLOWED
JITTER = 0.05
WORKERS = 2
LOAD = 0.7
"""Of what the devices can do in full batches, both tenants together, while they are quiet."""
FLOOD = 100
TOKENS = 400
SIGMA = 0.2
SECONDS = 45.0
WARM_UP_S = 8.0
ROUNDS = 3
BAR = 1.5
MODEL = "fair"
TENANTS = ("quiet", "flood")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    capacity = _texts_per_s(options.workers)
    rate = capacity * options.load / 2
    with tempfile.TemporaryDirectory(prefix="shoal-fair-") as path:
        folder = Path(path)
        cost = {"batch_ms": BATCH_MS, "token_us": TOKEN_US}
        curve = sim.sim_file(folder, cost=cost, jitter=JITTER)
        tuned = {"sim": {"cost": cost, "interactive_ms": INTERACTIVE_MS, "bulk_ms": BULK_MS}}
        model = sim.sim_profile(folder, MODEL, tuned=tuned)
        with EmbeddedMesh(
            folder / "state",
            models=[str(model)],
            workers=0,
            sim=curve,
            sim_workers=options.workers,
            tokens=_tokens(folder),
            trace_ratio=0.0,
        ) as running:
            running.wait_for_model(MODEL)
            alone = _phase(running, {"quiet": rate}, options, options.seed)
            rounds = []
            for seed in range(options.seed, options.seed + options.rounds):
                quiet = _phase(running, {"quiet": rate, "flood": rate}, options, seed)
                flood = _phase(running, {"quiet": rate, "flood": rate * FLOOD}, options, seed)
                rounds.append({"quiet": quiet, "flood": flood, "ratio": _p99(flood) / _p99(quiet)})
                report.say(f"round {seed}: {_p99(quiet):.0f} ms, and {_p99(flood):.0f} ms beside the flood")
    ratios = report.spread([each["ratio"] for each in rounds])
    flooded = [each["flood"]["flood"] for each in rounds]
    report.result(
        "p99_ratio",
        ratios["median"],
        f"<= {BAR}",
        spread=ratios,
        ratio_to_alone=report.spread([_p99(each["flood"]) / _p99(alone) for each in rounds]),
        flood_refused_share=report.spread([1 - each["answered"] / each["sent"] for each in flooded]),
        flood_share_of_capacity=report.spread([each["answered"] / options.seconds / capacity for each in flooded]),
        share_of_capacity=report.spread(
            [sum(each["flood"][name]["answered"] for name in TENANTS) / options.seconds / capacity for each in rounds]
        ),
        mesh_cores=report.spread([each["flood"]["mesh_cores"] for each in rounds]),
        capacity_texts_per_s=capacity,
        load=options.load,
        workers=options.workers,
        alone=alone,
        rounds=rounds,
    )


def _texts_per_s(workers: int) -> float:
    """What the devices do in full batches."""
    text_ms = open_load.mean_tokens(TOKENS, SIGMA) * TOKEN_US / 1e3
    return workers * (INTERACTIVE_MS - BATCH_MS) / INTERACTIVE_MS / text_ms * 1e3


def _tokens(folder: Path) -> Path:
    file = folder / "tokens.yaml"
    entries = [TokenEntry(sha256=tokens.digest(tenant), tenant=tenant, scopes=["infer"]) for tenant in TENANTS]
    file.write_text(tokens.written(entries))
    return file


def _phase(running: EmbeddedMesh, rates: dict[str, float], options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Every tenant's load at once, each from a process of its own; what each saw, and the mesh's processor time."""
    before = mesh.cpu_seconds(running)
    loads = {
        tenant: open_load.start(
            open_load.Plan(
                running.address,
                [MODEL],
                rate,
                options.seconds,
                seed=seed * len(TENANTS) + number,
                warm_up_s=WARM_UP_S,
                tokens=TOKENS,
                sigma=SIGMA,
                token=tenant,
            )
        )
        for number, (tenant, rate) in enumerate(rates.items())
    }
    found: dict[str, Any] = {tenant: load() for tenant, load in loads.items()}
    cores = mesh.cores(before, mesh.cpu_seconds(running), options.seconds + 1.5 * WARM_UP_S)
    return {**found, "cores_by_process": cores, "mesh_cores": sum(cores.values())}


def _p99(phase: dict[str, Any]) -> float:
    return phase["quiet"]["p99_ms"]


if __name__ == "__main__":
    main()
