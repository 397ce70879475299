"""`added_ms`: median of one text at a time through the mesh, less that of the bare forward at the same pace.

The bare side pauses between forwards as long as the mesh's device does between two calls. A second mesh, with every
request traced, breaks the time down by hop.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

from bench import load, mesh, report, texts
from bench.bare import Bare

BAR_MS = 4.0
ROUNDS = 10
SECONDS = 1.5
COUNT = 80


def main() -> None:
    figures = {}
    with mesh.running_mesh() as running, Bare() as bare:
        for lengths in texts.LENGTHS:
            figures[lengths] = _measure(running, bare, lengths, ROUNDS if lengths == "lognormal" else 2)
            report.say(f"{lengths}: {figures[lengths]['added_ms']}")
    main_figure = figures["lognormal"]
    report.result(
        "added_ms",
        main_figure["added_ms"]["median"],
        f"<= {BAR_MS}",
        spread=main_figure["added_ms"],
        hops_ms=_hops(),
        by_lengths=figures,
    )


def _measure(running, bare: Bare, lengths: str, rounds: int) -> dict:
    added, meshes, bares = [], [], []
    pause_ms = 3.0
    for seed in range(rounds):
        through = load.run(running.address, "unary1", lengths, SECONDS, seed, 1)["p50_ms"]
        alone = statistics.median(bare.single_ms(lengths, seed, COUNT, pause_ms))
        pause_ms = max(0.5, through - alone)
        alone = statistics.median(bare.single_ms(lengths, seed, COUNT, pause_ms))
        added.append(through - alone)
        meshes.append(through)
        bares.append(alone)
    return {"added_ms": report.spread(added), "mesh_p50_ms": meshes, "bare_p50_ms": bares}


def _hops() -> dict[str, float]:
    """Median milliseconds of each span of a traced request, by service and name."""
    spans: dict[str, list[float]] = defaultdict(list)
    with mesh.running_mesh(trace_ratio=1.0) as running:
        load.run(running.address, "unary1", "lognormal", SECONDS, 0, 1)
        running.stop()
        for line in running.folder.traces.read_text().splitlines():
            span = json.loads(line)
            spans[f"{span['service']}: {span['name']}"].append((span["end_unix_ns"] - span["start_unix_ns"]) / 1e6)
    return {name: statistics.median(values) for name, values in sorted(spans.items())}


if __name__ == "__main__":
    main()
