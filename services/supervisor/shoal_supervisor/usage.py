"""What the processes of a mesh use: memory and CPU, and the runtimes that only the sidecar knows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

RUNTIME_MODULE = "shoal_torch_runtime"


@dataclass(frozen=True)
class Usage:
    """One process."""

    memory_bytes: int
    """Proportional set size: pages that processes share are divided among them."""
    cpu_percent: float
    """Of one core, over the time measured."""


@dataclass(frozen=True)
class Runtime:
    """A process below the sidecar."""

    name: str
    pid: int


def runtimes(sidecar_pid: int | None) -> list[Runtime]:
    """The warm parent that imported torch, and the runtimes forked from it."""
    if sidecar_pid is None:
        return []
    try:
        parents = [child for child in psutil.Process(sidecar_pid).children() if _is_runtime(child)]
    except psutil.Error:
        return []
    found = []
    for parent in parents:
        found.append(Runtime("torch-parent", parent.pid))
        try:
            forked = [child for child in parent.children() if _is_runtime(child)]
        except psutil.Error:
            continue
        found += [Runtime("runtime" if n == 0 else f"runtime-{n}", child.pid) for n, child in enumerate(forked)]
    return found


def measure(pids: Iterable[int], seconds: float) -> dict[int, Usage]:
    """Memory, and the CPU used over `seconds`, of each process that lives and is ours."""
    before = {pid: times for pid in pids if (times := _cpu_s(pid)) is not None}
    started = time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - started
    found = {}
    for pid, then_s in before.items():
        now_s, memory = _cpu_s(pid), _memory(pid)
        if now_s is not None and memory is not None:
            found[pid] = Usage(memory, 100 * (now_s - then_s) / elapsed_s)
    return found


def _is_runtime(process: psutil.Process) -> bool:
    return process.status() != psutil.STATUS_ZOMBIE and any(RUNTIME_MODULE in part for part in process.cmdline())


def _cpu_s(pid: int) -> float | None:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return times.user + times.system


def _memory(pid: int) -> int | None:
    try:
        return psutil.Process(pid).memory_full_info().pss
    except psutil.Error:
        return None
