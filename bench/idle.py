"""`cpu_share`: share of one core that a mesh uses once it is idle again.

With `pss_gb` of all its processes, and `first_answer_s` of `shoal up`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import load, mesh, report
from tests.support.ports import free_port

BAR_CPU_SHARE = 0.05
BAR_PSS_GB = 1.5
BAR_FIRST_ANSWER_S = 20.0
LOAD_S = 3.0
"""What was learnt of short pauses between requests must not count in long ones."""
SETTLE_S = 5.0
SECONDS = 10.0
ROUNDS = 3


def main() -> None:
    first_answer_s = [_first_answer_s() for _ in range(ROUNDS)]
    shares, by_process = [], {}
    with mesh.running_mesh() as running:
        load.run(running.address, "unary1", "lognormal", LOAD_S, 0, 1)
        time.sleep(SETTLE_S)
        for _ in range(ROUNDS):
            before = mesh.cpu_seconds(running)
            time.sleep(SECONDS)
            by_process = mesh.cores(before, mesh.cpu_seconds(running), SECONDS)
            shares.append(sum(by_process.values()))
        pss = mesh.pss_bytes(running)
    report.result(
        "cpu_share",
        report.spread(shares)["median"],
        f"< {BAR_CPU_SHARE}, pss_gb < {BAR_PSS_GB}, first_answer_s <= {BAR_FIRST_ANSWER_S}",
        spread=report.spread(shares),
        pss_gb=sum(pss.values()) / 1e9,
        first_answer_s=report.spread(first_answer_s),
        cores_by_process=by_process,
        pss_mb_by_process={name: value / 1e6 for name, value in pss.items()},
    )


def _first_answer_s() -> float:
    """Seconds from `shoal up` to its first answer on the screen, everything built before."""
    shoal = str(Path(sys.executable).with_name("shoal"))
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as state:
        command = [shoal, "up", "--first-request", "--port", str(free_port()), "--state", state]
        started = time.perf_counter()
        up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert up.stdout
            for line in up.stdout:
                if line.startswith("encode("):
                    return time.perf_counter() - started
            raise RuntimeError("shoal up ended without an answer")
        finally:
            up.terminate()
            up.wait(20)


if __name__ == "__main__":
    main()
