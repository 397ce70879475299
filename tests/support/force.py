"""Faults by force: a seeded schedule of kills, pauses, cuts and broker restarts, carried out on a running mesh."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass

from shoal_supervisor.embedded import EmbeddedMesh
from tests.support.broker_proxy import BrokerProxy
from tests.support.nats import NatsServer

PAUSE_S = 3.0
"""How long a process is stopped, or cut off from the broker."""
LEAST_GAP_S = 1.0
MOST_GAP_S = 6.0
ON_BROKER = ("worker-0", "worker-1", "registry", "scheduler", "gateway")
KILLED = (*ON_BROKER, "lora-store", "sidecar", "runtime")


@dataclass(frozen=True)
class Fault:
    """What is done to whom, and how long after the fault before."""

    kind: str
    process: str
    gap_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.process}"


def schedule(seed: int, seconds: float) -> list[Fault]:
    """Faults for about so many seconds; each kind and each process comes up in turn, in a seeded order."""
    rng = random.Random(seed)
    every = [
        *(("kill", process) for process in KILLED),
        *(("pause", process) for process in KILLED),
        *(("cut", process) for process in ON_BROKER),
        ("restart", "broker"),
        ("pause", "broker"),
    ]
    faults: list[Fault] = []
    spent_s = 0.0
    while spent_s < seconds:
        rng.shuffle(every)
        for kind, process in every:
            fault = Fault(kind, process, rng.uniform(LEAST_GAP_S, MOST_GAP_S))
            spent_s += fault.gap_s
            if spent_s >= seconds:
                break
            faults.append(fault)
    return faults


class Force:
    """Carries faults out; what lasts (pauses, cuts) overlaps with the faults that follow."""

    def __init__(self, mesh: EmbeddedMesh, broker: NatsServer, proxy: BrokerProxy) -> None:
        self._mesh = mesh
        self._broker = broker
        self._proxy = proxy
        self._timers: list[threading.Timer] = []
        self.done: Counter[str] = Counter()

    def run(self, faults: list[Fault]) -> None:
        """Carries all of them out, each after its gap, and ends what lasts."""
        for fault in faults:
            time.sleep(fault.gap_s)
            self._carry_out(fault)
            self.done[str(fault)] += 1
        for timer in self._timers:
            timer.join()

    def _carry_out(self, fault: Fault) -> None:
        if fault.process == "broker":
            self._at_broker(fault.kind)
            return
        pid = self._mesh.pid(fault.process)
        if fault.kind == "kill":
            _signal(pid, signal.SIGKILL)
        elif fault.kind == "pause":
            _signal(pid, signal.SIGSTOP)
            self._later(_signal, pid, signal.SIGCONT)
        else:
            self._proxy.cut(pid)
            self._later(self._proxy.mend, pid)

    def _at_broker(self, kind: str) -> None:
        if kind == "restart":
            self._broker.restart()
        else:
            pid = self._broker.pid
            _signal(pid, signal.SIGSTOP)
            self._later(_signal, pid, signal.SIGCONT)

    def _later(self, call, *arguments) -> None:
        timer = threading.Timer(PAUSE_S, call, arguments)
        timer.start()
        self._timers.append(timer)


def _signal(pid: int, number: signal.Signals) -> None:
    """A process that another fault has ended needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
