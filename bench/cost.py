"""`mean_absolute_error`: of what a worker predicts for a batch, over what it took, after 200 batches of MiniLM.

Short texts, long ones and requests of 64 texts share a mesh, so that batches of all sizes run, alone and beside
others. The worker itself compares the prediction it made when it sent a batch with the device time that it was
charged, and exports the sum: what it reports is read here. Then it is killed, and its successor's first batches are
read: it has saved what it had learnt.

Beside the figure stands how many cores others than the mesh and its load kept busy meanwhile: they take the same
cores, so that a batch then takes longer than any batch before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil

from bench import load, mesh, report
from shoal_supervisor.embedded import EmbeddedMesh
from shoal_worker.cost_store import SAVE_PERIOD_S, SAVE_S
from tests.unit.common.fake_collector import FakeCollector

BAR = 0.10
FIRST = 20
LEARNT = 200
MEASURED = 600
LOADS = ((1, "lognormal", 6), (1, "128", 1), (64, "lognormal", 1))
"""Texts a request, their lengths, and callers at once."""
WAIT_S = 180.0
ERRORS = ("shoal.worker.cost_error", "model=minilm")


def main() -> None:
    with FakeCollector() as collector, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with EmbeddedMesh(Path(folder), models=["minilm"], env=collector.env) as running:
            running.wait_for_model("minilm")
            with _load(running.address):
                figures = _measure(collector, running)
    report.result("mean_absolute_error", figures["after_200_batches"], f"<= {BAR}", **figures)


def _measure(collector: FakeCollector, running: EmbeddedMesh) -> dict:
    started_s = time.monotonic()
    first = _errors(collector, FIRST)
    learnt = _errors(collector, LEARNT)
    cores = _Cores(running)
    last = _errors(collector, MEASURED)
    others = cores.others()
    report.say(f"{last[0]} batches: {_mean(learnt, last):.3f}, others kept {others:.2f} cores busy")
    time.sleep(max(0.0, started_s + SAVE_PERIOD_S + SAVE_S - time.monotonic()))  # What it learnt is saved by then.
    before = running.restarts()
    os.kill(running.pid("worker-0"), signal.SIGKILL)
    _wait(lambda: running.restarts() > before, "the worker is started again")
    collector.histograms.clear()
    again = _errors(collector, FIRST)
    return {
        "after_200_batches": _mean(learnt, last),
        "batches": last[0] - learnt[0],
        "first_20_batches": _mean((0, 0.0), first),
        "first_20_batches_after_restart": _mean((0, 0.0), again),
        "next_180_batches_after_restart": _mean(again, _errors(collector, LEARNT)),
        "cores_of_others": others,
        "cores": psutil.cpu_count(),
    }


def _errors(collector: FakeCollector, batches: int) -> tuple[int, float]:
    """Batches so far, and the sum of their errors, once there are so many."""
    _wait(lambda: collector.histograms.get(ERRORS, (0, 0.0))[0] >= batches, f"{batches} batches ran")
    return collector.histograms[ERRORS]


def _mean(before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / max(1, after[0] - before[0])


class _Cores:
    """Who kept the machine's cores busy since this was made."""

    def __init__(self, running: EmbeddedMesh) -> None:
        self._running = running
        self._began = (time.monotonic(), _busy_s(), mesh.cpu_seconds(running), time.process_time())

    def others(self) -> float:
        """Cores of all but the mesh and its load."""
        at_s, busy_s, by_process, own_s = self._began
        seconds = time.monotonic() - at_s
        ours = sum(mesh.cores(by_process, mesh.cpu_seconds(self._running), seconds).values())
        return max(0.0, (_busy_s() - busy_s - (time.process_time() - own_s)) / seconds - ours)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait


@contextlib.contextmanager
def _load(address: str) -> Iterator[None]:
    """Callers of each kind while the block runs, on a thread: started once, so that only the mesh's work varies."""
    loads = [(load.Load(lengths, 1, texts, "minilm"), callers) for texts, lengths, callers in LOADS]
    started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()

    async def call() -> None:
        over = asyncio.Event()
        started.put((asyncio.get_running_loop(), over))
        async with grpc.aio.insecure_channel(address, options=load.OPTIONS) as channel:
            callers = [asyncio.create_task(one.unary(channel, math.inf)) for one, count in loads for _ in range(count)]
            await over.wait()
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(call()))
    thread.start()
    loop, over = started.get()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def _wait(condition, what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
