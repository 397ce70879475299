"""Which processes make up an embedded mesh, and how each is started."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from shoal_common import tokens
from shoal_supervisor.broker import Broker
from shoal_supervisor.leftovers import MARKER
from shoal_supervisor.options import MeshOptions
from shoal_supervisor.state import StateFolder


class Stage(IntEnum):
    """Processes are stopped stage by stage, so that none loses what it still needs."""

    GATEWAY = 0
    WORKER = 1
    CONTROL = 2
    SIDECAR = 3
    BROKER = 4


BROKER_SHARE = 4
"""The broker runs on one core of so many: one alone carries more than the devices of a machine can serve."""


@dataclass(frozen=True)
class ProcessPlan:
    """One process of the mesh."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    listen: str
    """Where it answers: a gRPC address, or nats://host:port."""
    stage: Stage
    token: str = ""
    """What the broker wants from those who connect."""


def plan(
    options: MeshOptions,
    state: StateFolder,
    sockets: Path,
    broker: Broker,
    sidecar: Path,
    inherited: Mapping[str, str],
    operator_token: str = "",
) -> list[ProcessPlan]:
    """The processes in the order in which they are started; none waits for another.

    Args:
        options: what the person chose.
        state: the mesh's state folder.
        sockets: the folder of its Unix sockets.
        broker: the broker, as configured.
        sidecar: the sidecar's binary.
        inherited: the environment that every process starts from.
        operator_token: what the mesh's own tools call it with; empty where it asks for no tokens.
    """

    def socket_of(name: str) -> str:
        return f"unix:{sockets / name}.sock"

    everywhere = {
        **inherited,
        MARKER: str(state.path),
        "SHOAL_NATS_URL": broker.url,
        "SHOAL_NATS_TOKEN": broker.token,
        "SHOAL_REGISTRY": socket_of("registry"),
        "SHOAL_SCHEDULER": socket_of("scheduler"),
        "SHOAL_EXIT_WITH_PARENT": "1",
        "SHOAL_TRACE_FILE": str(state.traces),
        "SHOAL_TRACE_RATIO": str(options.trace_ratio),
        "SHOAL_LOG_LEVEL": options.log_level,
        # No service computes with numpy; its idle threads would cost memory in each.
        "OPENBLAS_NUM_THREADS": "1",
    }

    def service(name: str, module: str, listen: str, stage: Stage, **settings: str) -> ProcessPlan:
        own = {f"SHOAL_{key.upper()}": value for key, value in settings.items()}
        return ProcessPlan(
            name, (sys.executable, "-m", module), {**everywhere, "SHOAL_LISTEN": listen, **own}, listen, stage
        )

    # Its idle threads look for work before they sleep: on few cores, instead of a model that computes.
    broker_cores = str(max(1, options.cores // BROKER_SHARE))
    marked = {"GOMAXPROCS": broker_cores, **inherited, MARKER: str(state.path)}
    own_broker = (
        [ProcessPlan("nats", broker.command, marked, broker.url, Stage.BROKER, broker.token)] if broker.command else []
    )

    def worker(name: str, device: str, **settings: str) -> ProcessPlan:
        return service(
            name,
            "shoal_worker",
            socket_of(name),
            Stage.WORKER,
            worker=name,
            machine=socket.gethostname(),
            sidecar=socket_of("sidecar"),
            device=device,
            blobs=str(state.blobs),
            **settings,
        )

    share = str(max(1, options.cores // max(1, options.workers)))
    return [
        # First, for its runtime imports torch, which takes longer than all else.
        ProcessPlan(
            "sidecar",
            (
                str(sidecar),
                *("--socket", str(sockets / "sidecar.sock")),
                *("--runtime-dir", str(sockets / "runtime")),
                *("--python", sys.executable),
                "--exit-with-parent",
                *(() if options.workers else ("--lazy-torch",)),
                *(("--sim", str(options.sim.expanduser().resolve())) if options.sim else ()),
            ),
            everywhere,
            socket_of("sidecar"),
            Stage.SIDECAR,
        ),
        *own_broker,
        service(
            "registry",
            "shoal_registry",
            socket_of("registry"),
            Stage.CONTROL,
            replica="registry-0",
            register=",".join(options.models),
            check_sources="1",
        ),
        service("scheduler", "shoal_scheduler", socket_of("scheduler"), Stage.CONTROL, replica="scheduler-0"),
        *(worker(f"worker-{number}", "cpu", streams=share, threads=share) for number in range(options.workers)),
        *(worker(f"worker-sim-{number}", f"sim:{number}") for number in range(options.sim_workers)),
        service(
            "gateway",
            "shoal_gateway",
            options.address,
            Stage.GATEWAY,
            blobs=str(state.blobs),
            tokens=str(options.tokens.expanduser().resolve()) if options.tokens else "",
            operator_sha256=tokens.digest(operator_token) if operator_token else "",
        ),
        service("lora-store", "shoal_lora_store", socket_of("lora-store"), Stage.CONTROL, blobs=str(state.blobs)),
    ]


def inherited_environment() -> dict[str, str]:
    """This process's environment, without what only an interactive Python or a terminal needs."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONSTARTUP", "PYTHONINSPECT")}
