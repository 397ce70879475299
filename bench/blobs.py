"""`blobs_share`: MiB a second of large items through the mesh, over what the blob store does alone with the same.

Through the mesh: one Infer stream with several requests in flight, one media item each, for a simulated model that
looks at 64 KiB of each item. Alone, as many items at once: what bench/blob_bare.py says. Both sides write to the same
disk. The figure is that of a stream whose items have 1 to 32 MiB, in turn; beside it stand those of streams with items
of one size, since what a request costs whatever its size weighs on the small ones. `cpu_share` is the same of
processor time: what the share comes to where processors are all that limits both sides.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench import blob_bare, blob_load, mesh, report
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import sim

BAR = 0.6
MIXED = (1, 16, 4, 32, 2, 8)
IN_FLIGHT: dict[tuple[int, ...], int] = {MIXED: 8, (1,): 16, (4,): 16, (16,): 8, (32,): 4}
"""Items at once by the sizes of a stream's items in MiB."""
ROUNDS = 3
SECONDS = 4.0
COST = {"batch_ms": 4.0, "token_us": 2.0}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        profile = sim.sim_profile(folder, "media", encode={"inputs": ["text", "media"]})
        options = {"workers": 0, "sim": sim.sim_file(folder, cost=COST), "sim_workers": 1, "trace_ratio": 0.0}
        with EmbeddedMesh(folder / "state", models=[str(profile)], **options) as running:
            running.wait_for_model("media")
            figures = {sizes: _measure(running, folder / "bare", sizes) for sizes in IN_FLIGHT}
    report.result(
        "blobs_share",
        figures[MIXED]["share"]["median"],
        f">= {BAR}",
        share_by_mib={_name(sizes): figure["share"]["median"] for sizes, figure in figures.items()},
        cpu_share_by_mib={_name(sizes): figure["cpu_share"]["median"] for sizes, figure in figures.items()},
        by_mib={_name(sizes): figure for sizes, figure in figures.items()},
    )


def _name(sizes_mib: tuple[int, ...]) -> str:
    return "-".join(map(str, sizes_mib))


def _measure(running: EmbeddedMesh, bare_folder: Path, sizes_mib: tuple[int, ...]) -> dict:
    in_flight = IN_FLIGHT[sizes_mib]
    shares, cpu_shares, meshes, bares, cpus = [], [], [], [], []
    for _ in range(ROUNDS):
        before = blob_bare.run(bare_folder, sizes_mib, SECONDS, in_flight)
        cpu = mesh.cpu_seconds(running)
        through = blob_load.run(running.address, "media", sizes_mib, SECONDS, in_flight)
        used = mesh.cores(cpu, mesh.cpu_seconds(running), through["loaded_mib"])
        after = blob_bare.run(bare_folder, sizes_mib, SECONDS, in_flight)
        cpus.append({name: seconds * 1e3 for name, seconds in used.items() if seconds * 1e3 >= 0.01})
        shares.append(through["mib_per_s"] / statistics.mean([before["mib_per_s"], after["mib_per_s"]]))
        alone_ms = statistics.mean([before["cpu_ms_per_mib"], after["cpu_ms_per_mib"]])
        cpu_shares.append(alone_ms / (sum(cpus[-1].values()) + through["cpu_ms_per_mib"]))
        meshes.append(through)
        bares += [before, after]
    report.say(f"{_name(sizes_mib)} MiB: {report.spread(shares)}")
    return {
        "share": report.spread(shares),
        "cpu_share": report.spread(cpu_shares),
        "in_flight": in_flight,
        "mesh_mib_per_s": report.spread([one["mib_per_s"] for one in meshes]),
        "bare_mib_per_s": report.spread([one["mib_per_s"] for one in bares]),
        "mesh_p50_ms": statistics.median(one["p50_ms"] for one in meshes),
        "bare_cpu_ms_per_mib": statistics.median(one["cpu_ms_per_mib"] for one in bares),
        "load_generator_cpu_ms_per_mib": statistics.median(one["cpu_ms_per_mib"] for one in meshes),
        "mesh_cpu_ms_per_mib": cpus[-1],
    }


if __name__ == "__main__":
    main()
