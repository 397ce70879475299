"""`blobs_share`: MiB a second of large items through the mesh, over what the blob store does alone with the same.

Through the mesh: one Infer stream with IN_FLIGHT requests of one media item each, a simulated model. Alone: as many
items at once, each put, got, its SHA-256 checked, and deleted (bench/blob_bare.py). Both write to the same disk.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench import blob_bare, blob_load, mesh, report
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import sim

BAR = 0.6
SIZES_MIB = (1, 4, 16, 32)
IN_FLIGHT = 4
ROUNDS = 3
SECONDS = 4.0
WORKERS = 1


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        profile = sim.sim_profile(folder, "media", encode={"inputs": ["text", "media"]})
        sim_file = sim.sim_file(folder, cost={"batch_ms": 0.1, "token_us": 0.1})
        options = {"workers": 0, "sim": sim_file, "sim_workers": WORKERS, "trace_ratio": 0.0}
        with EmbeddedMesh(folder / "state", models=[str(profile)], **options) as running:
            running.wait_for_model("media")
            figures = {mib: _measure(running, folder / "bare", mib) for mib in SIZES_MIB}
    report.result(
        "blobs_share",
        min(figure["share"]["median"] for figure in figures.values()),
        f">= {BAR}",
        share_by_mib={mib: figure["share"]["median"] for mib, figure in figures.items()},
        in_flight=IN_FLIGHT,
        by_mib=figures,
    )


def _measure(running: EmbeddedMesh, bare_folder: Path, mib: int) -> dict:
    shares, meshes, bares, cpus = [], [], [], []
    for _ in range(ROUNDS):
        before = blob_bare.run(bare_folder, mib, SECONDS, IN_FLIGHT)
        cpu = mesh.cpu_seconds(running)
        through = blob_load.run(running.address, "media", mib, SECONDS, IN_FLIGHT)
        used = mesh.cores(cpu, mesh.cpu_seconds(running), through["loaded_mib"])
        after = blob_bare.run(bare_folder, mib, SECONDS, IN_FLIGHT)
        cpus.append({name: seconds * 1e3 for name, seconds in used.items() if seconds * 1e3 >= 0.01})
        shares.append(through["mib_per_s"] / statistics.mean([before["mib_per_s"], after["mib_per_s"]]))
        meshes.append(through)
        bares += [before, after]
    report.say(f"{mib} MiB: {report.spread(shares)}")
    return {
        "share": report.spread(shares),
        "mesh_mib_per_s": report.spread([one["mib_per_s"] for one in meshes]),
        "bare_mib_per_s": report.spread([one["mib_per_s"] for one in bares]),
        "mesh_p50_ms": statistics.median(one["p50_ms"] for one in meshes),
        "bare_cpu_ms_per_mib": statistics.median(one["cpu_ms_per_mib"] for one in bares),
        "load_generator_cpu_ms_per_mib": statistics.median(one["cpu_ms_per_mib"] for one in meshes),
        "mesh_cpu_ms_per_mib": cpus[-1],
    }


if __name__ == "__main__":
    main()
