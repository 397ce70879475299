"""`added_ms`: what the mesh adds to the forward of one text, one at a time: the median over texts.

A blocking gRPC caller sends some texts, then the bare forward runs the same ones, pausing between two as long as the
mesh's device does; so by turns, that both sides have the machine as it is at the time. The spread is that of the
turns. `added_over_bare` is the same as a share of the bare forward: milliseconds are of one machine and one moment,
and where the bar was set a forward took `REFERENCE_BARE_MS`. A second mesh, with every request traced, breaks the time
down by hop.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import grpc

from bench import load, mesh, report, texts
from bench.bare import Bare
from shoal.v1 import inference_pb2 as pb
from shoal_supervisor.embedded import EmbeddedMesh

BAR_MS = 4.0
REFERENCE_BARE_MS = 6.4
TURNS = 40
FEW_TURNS = 10
TEXTS = 16
"""Of one turn."""
LEAST_PAUSE_MS = 0.5
TRACED_S = 3.0


def main() -> None:
    figures = {}
    with mesh.running_mesh() as running, Bare() as bare:
        for lengths in texts.LENGTHS:
            figures[lengths] = _measure(running, bare, lengths, TURNS if lengths == "lognormal" else FEW_TURNS)
            report.say(f"{lengths}: {figures[lengths]['added_ms']:.2f} ms, {figures[lengths]['by_turn']}")
    report.result(
        "added_ms",
        figures["lognormal"]["added_ms"],
        f"<= {BAR_MS}, added_over_bare <= {BAR_MS / REFERENCE_BARE_MS}",
        added_over_bare=figures["lognormal"]["added_over_bare"],
        hops_ms=_hops(),
        by_lengths=figures,
    )


def _measure(running: EmbeddedMesh, bare: Bare, lengths: str, turns: int) -> dict:
    sample = texts.make(lengths, texts.COUNT, 0)
    pause_ms, added, by_turn, meshes, bares = 3.0, [], [], [], []
    with grpc.insecure_channel(running.address) as channel:
        call = channel.unary_unary("/shoal.v1.InferenceService/Encode")
        for turn in range(turns + 1):
            first = turn * TEXTS % (texts.COUNT - TEXTS)
            through = [_call_ms(call, text) for text in sample[first : first + TEXTS]]
            alone = bare.single_ms(lengths, first, TEXTS, pause_ms)
            if not turn:
                continue  # Both sides are warm now.
            differences = [one - other for one, other in zip(through, alone, strict=True)]
            added += differences
            by_turn.append(statistics.median(differences))
            meshes += through
            bares += alone
            pause_ms = max(LEAST_PAUSE_MS, statistics.median(added))
    return {
        "added_ms": statistics.median(added),
        "added_over_bare": statistics.median(added) / statistics.median(bares),
        "by_turn": report.spread(by_turn),
        "mesh_p50_ms": statistics.median(meshes),
        "bare_p50_ms": statistics.median(bares),
    }


def _call_ms(call: Callable[[bytes], bytes], text: str) -> float:
    payload = pb.EncodeRequest(model="minilm", items=[pb.Item(text=text)]).SerializeToString()
    started = time.perf_counter()
    call(payload)
    return (time.perf_counter() - started) * 1e3


def _hops() -> dict[str, float]:
    """Median milliseconds of each span of a traced request, by service and name."""
    spans: dict[str, list[float]] = defaultdict(list)
    with mesh.running_mesh(trace_ratio=1.0) as running:
        load.run(running.address, "unary1", "lognormal", TRACED_S, 0, 1)
        running.stop()
        for line in running.folder.traces.read_text().splitlines():
            span = json.loads(line)
            spans[f"{span['service']}: {span['name']}"].append((span["end_unix_ns"] - span["start_unix_ns"]) / 1e6)
    return {name: statistics.median(values) for name, values in sorted(spans.items())}


if __name__ == "__main__":
    main()
