"""The mesh under measurement: started for one figure, its processor time and memory by process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from shoal_supervisor.embedded import EmbeddedMesh

RUNTIME = "shoal_torch_runtime"


@contextlib.contextmanager
def running_mesh(trace_ratio: float = 0.0) -> Iterator[EmbeddedMesh]:
    """A mesh with the default model, ready to answer."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with EmbeddedMesh(Path(folder), models=["minilm"], trace_ratio=trace_ratio) as mesh:
            mesh.wait_for_model("minilm")
            yield mesh


def processes(mesh: EmbeddedMesh) -> dict[str, psutil.Process]:
    """Every process of the mesh by name, the supervisor included."""
    supervisor = psutil.Process(mesh.status()["pid"])
    names = {p["pid"]: p["name"] for p in mesh.status()["processes"]}
    found = {"supervisor": supervisor}
    for process in supervisor.children(recursive=True):
        name = names.get(process.pid) or ("runtime" if RUNTIME in " ".join(process.cmdline()) else process.name())
        found[name if name not in found else f"{name}-{process.pid}"] = process
    return found


def cpu_seconds(mesh: EmbeddedMesh) -> dict[str, float]:
    """Processor seconds that each process has used so far."""
    used = {}
    for name, process in processes(mesh).items():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[name] = times.user + times.system
    return used


def cores(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Cores that each process kept busy between two readings."""
    return {name: (after[name] - before.get(name, 0.0)) / seconds for name in after}


def outside_runtime(by_process: dict[str, float]) -> float:
    """Cores of everything but the runtimes."""
    return sum(value for name, value in by_process.items() if not name.startswith("runtime"))


def pss_bytes(mesh: EmbeddedMesh) -> dict[str, int]:
    """Proportional set size of each process: shared pages are counted once over all."""
    return {name: process.memory_full_info().pss for name, process in processes(mesh).items()}
