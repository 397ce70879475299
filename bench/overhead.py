"""`ratio`: tokens a second through the mesh over those of the bare packed forward; 64-text requests, 8 in flight.

The bare side runs on the same texts and cores at its own best streams x threads, before and after the mesh's.
"""

from __future__ import annotations

import statistics

from bench import load, mesh, report, texts
from bench.bare import Bare

BAR = 0.92
CPU_BUDGET_CORES = 0.1
ROUNDS = 3
SECONDS = 8.0
BARE_SECONDS = 4.0
IN_FLIGHT = 8


def main() -> None:
    figures: dict[str, dict] = {}
    with mesh.running_mesh() as running, Bare() as bare:
        for lengths in texts.LENGTHS:
            figures[lengths] = _measure(running, bare, lengths, ROUNDS if lengths == "lognormal" else 1)
            report.say(f"{lengths}: {figures[lengths]['ratio']}")
    main_figure = figures["lognormal"]
    report.result(
        "ratio",
        main_figure["ratio"]["median"],
        f">= {BAR}",
        spread=main_figure["ratio"],
        mesh_cpu_outside_runtime_cores=main_figure["outside_runtime_cores"],
        mesh_cpu_budget_cores=CPU_BUDGET_CORES,
        by_lengths=figures,
    )


def _measure(running, bare: Bare, lengths: str, rounds: int) -> dict:
    ratios, meshes, bares, cpus, loads = [], [], [], [], []
    before = bare.throughput(lengths, 0, BARE_SECONDS)
    for seed in range(rounds):
        cpu = mesh.cpu_seconds(running)
        measured = load.run(running.address, "unary64", lengths, SECONDS, seed, IN_FLIGHT)
        used = mesh.cores(cpu, mesh.cpu_seconds(running), measured["loaded_s"])
        after = bare.throughput(lengths, seed, BARE_SECONDS)
        best = statistics.mean([max(before.values()), max(after.values())])
        ratios.append(measured["tokens_per_s"] / best)
        meshes.append(measured)
        bares.append(after)
        cpus.append(used)
        loads.append(measured["cpu_cores"])
        before = after
    return {
        "ratio": report.spread(ratios),
        "mesh": meshes,
        "bare_tokens_per_s": bares,
        "outside_runtime_cores": statistics.median(map(mesh.outside_runtime, cpus)),
        "cores_by_process": cpus[-1],
        "load_generator_cores": statistics.median(loads),
    }


if __name__ == "__main__":
    main()
