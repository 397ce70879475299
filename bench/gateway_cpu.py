"""`unary_us`: the gateway's processor time for a one-text request of 64 unary callers; `infer_us`: on 64 Infer streams.

Limits, checks, metrics (exported to a collector) and 1 % tracing are on. The device is simulated and quick, so that
the gateway is what the load is bounded by. The gateway's time is divided by the requests that it answered.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench import load, mesh, report
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import sim
from tests.unit.common.fake_collector import FakeCollector

UNARY_BAR_US = 600.0
INFER_BAR_US = 250.0
ROUNDS = 3
SECONDS = 8.0
CALLERS = 64
LENGTHS = "5"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-gwcpu-") as path, FakeCollector() as collector:
        folder = Path(path)
        curve = sim.sim_file(folder, cost={"batch_ms": 1.0, "token_us": 1.0})
        environment = {**collector.env, "OTEL_METRIC_EXPORT_INTERVAL": "5000"}
        state = folder / "state"
        model = sim.sim_profile(folder, "sim")
        with EmbeddedMesh(
            state, models=[str(model)], workers=0, sim=curve, sim_workers=1, trace_ratio=0.01, env=environment
        ) as running:
            running.wait_for_model("sim")
            found = {kind: [_measure(running, kind, seed) for seed in range(ROUNDS)] for kind in ("unary1", "infer1")}
    unary = report.spread([each["gateway_us"] for each in found["unary1"]])
    infer = report.spread([each["gateway_us"] for each in found["infer1"]])
    report.result(
        "unary_us",
        unary["median"],
        f"<= {UNARY_BAR_US:.0f}, and infer_us <= {INFER_BAR_US:.0f}",
        infer_us=infer["median"],
        unary=unary,
        infer=infer,
        rounds=found,
    )


def _measure(running: EmbeddedMesh, kind: str, seed: int) -> dict[str, Any]:
    before = mesh.cpu_seconds(running)
    measured = load.run(running.address, kind, LENGTHS, SECONDS, seed, CALLERS, "sim")
    after = mesh.cpu_seconds(running)
    used = {name: after[name] - before.get(name, 0.0) for name in after}
    found = {
        "gateway_us": used["gateway"] / measured["answered"] * 1e6,
        "requests_per_s": measured["answered"] / measured["loaded_s"],
        "failed": measured["failed"],
        "us_by_process": {name: seconds / measured["answered"] * 1e6 for name, seconds in used.items()},
    }
    report.say(f"{kind}: {found['gateway_us']:.0f} us of the gateway a request")
    return found


if __name__ == "__main__":
    main()
