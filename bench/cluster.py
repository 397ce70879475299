"""Machines beside an embedded mesh: a sidecar each with simulated workers, in pools of their own choice.

The mesh brings broker, registry, scheduler and gateway; its one worker of its own stays without work.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil

import shoal
from bench import mesh as mesh_processes
from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal_supervisor.embedded import EmbeddedMesh
from shoal_supervisor.sidecar_build import sidecar_binary
from tests.support import sim

READY_S = 60.0
STOP_S = 10.0


@dataclass
class Cluster:
    """A running mesh, and the processes that were added to it by name."""

    mesh: EmbeddedMesh
    folder: Path
    nats_url: str
    nats_token: str
    added: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _outputs: list = field(default_factory=list)

    @property
    def registry(self) -> str:
        """The registry's address."""
        return self.mesh.mesh_status().process("registry").listen

    def machine(self, name: str, sim_file: Path, pools: Sequence[str], nats_url: str = "") -> None:
        """A sidecar and a simulated worker for each pool, on devices sim:0, sim:1 and so on."""
        sockets = Path(tempfile.mkdtemp(prefix="shoal-b-"))
        socket = sockets / "s.sock"
        sidecar = [
            str(sidecar_binary(lambda _: None)),
            *("--socket", str(socket), "--runtime-dir", str(sockets / "r"), "--python", sys.executable),
            *("--sim", str(sim_file)),
        ]
        self._start(f"sidecar-{name}", sidecar, {})
        _wait_for(socket.exists, f"sidecar {name} listens")
        for number, pool in enumerate(pools):
            worker = f"{name}-{number}"
            settings = {
                "worker": worker,
                "machine": name,
                "pool": pool,
                "sidecar": f"unix:{socket}",
                "device": f"sim:{number}",
                "listen": f"unix:{sockets / worker}.sock",
                **({"nats_url": nats_url} if nats_url else {}),
            }
            self.service(worker, "shoal_worker", settings)

    def service(self, name: str, module: str, settings: dict[str, str], extra: Mapping[str, str] | None = None) -> None:
        """A process of the mesh's own kind, `python -m <module>` with SHOAL_* settings."""
        everywhere = {
            "nats_url": self.nats_url,
            "nats_token": self.nats_token,
            "registry": self.registry,
            "scheduler": self.mesh.mesh_status().process("scheduler").listen,
            "log_level": "warning",
        }
        environment = {f"SHOAL_{key.upper()}": value for key, value in {**everywhere, **settings}.items()}
        self._start(name, [sys.executable, "-m", module], {**environment, **(extra or {})})

    def push_gateway(self, address: str, router: dict[str, Any]) -> None:
        """A gateway with a router (bench/push_gateway.py) that listens on `address`."""
        settings = {"listen": address, "gateway": "push", "trace_ratio": "0"}
        self.service("push-gateway", "bench.push_gateway", settings, {"BENCH_ROUTER": json.dumps(router)})

    def register(self, *profiles: Path) -> None:
        """Registers models."""
        with grpc.insecure_channel(self.registry) as channel:
            stub = registry_pb2_grpc.RegistryServiceStub(channel)
            for profile in profiles:
                stub.RegisterModel(registry_pb2.RegisterModelRequest(profile=profile.read_text()), timeout=READY_S)

    def wait_ready(self, address: str, names: Sequence[str], workers: int = 1) -> None:
        """Returns when a gateway says that so many workers hold each of the models."""
        with shoal.connect(address) as client:

            def ready() -> bool:
                with contextlib.suppress(shoal.CallError):
                    models = {model.name: model for model in client.models(timeout=5)}
                    return all(name in models and models[name].state == "ready" for name in names)
                return False

            _wait_for(ready, f"{', '.join(names)} are ready")
        self._wait_for_workers(names, workers)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor seconds of each process so far."""
        used = mesh_processes.cpu_seconds(self.mesh)
        for name, process in self.added.items():
            times = psutil.Process(process.pid).cpu_times()
            used[name] = times.user + times.system
        return used

    def stop(self) -> None:
        """Ends what was added."""
        for process in reversed(self.added.values()):
            process.terminate()
        for process in self.added.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for output in self._outputs:
            output.close()

    def _wait_for_workers(self, names: Sequence[str], workers: int) -> None:
        from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

        with grpc.insecure_channel(self.mesh.mesh_status().process("scheduler").listen) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

            def held() -> bool:
                fleet = stub.GetFleet(scheduler_pb2.GetFleetRequest(), timeout=5)
                ready = [lane.workers for lane in fleet.lanes if lane.residency == scheduler_pb2.RESIDENCY_READY]
                return sum(count >= workers for count in ready) >= len(names)

            _wait_for(held, f"{workers} workers hold each model")

    def _start(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        output = (self.folder / f"{name}.log").open("ab")
        self._outputs.append(output)
        self.added[name] = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


@contextlib.contextmanager
def running_cluster(sim_file: Path, folder: Path, **options) -> Iterator[Cluster]:
    """A mesh with no worker that counts, to which machines are added; everything ends with the block."""
    idle = sim.sim_profile(folder, "idle")
    state = folder / "state"
    with EmbeddedMesh(
        state, models=[str(idle)], workers=0, sim=sim_file, sim_workers=1, trace_ratio=0.0, **options
    ) as mesh:
        url, token = options.get("nats_url", ""), options.get("nats_token", "")
        if not url:
            kept = json.loads((mesh.folder.broker / "access.json").read_text())
            url, token = f"nats://127.0.0.1:{kept['port']}", kept["token"]
        cluster = Cluster(mesh, folder, url, token)
        try:
            yield cluster
        finally:
            cluster.stop()


def _wait_for(holds, what: str, timeout_s: float = READY_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.05)
