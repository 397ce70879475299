"""An embedded mesh from its options to its end: everything checked first, then started, then supervised."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util

from shoal_common import tokens
from shoal_supervisor import broker, devices, operator_token, ports, requested_models, sidecar_build
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.leftovers import alive_lock
from shoal_supervisor.options import MeshOptions
from shoal_supervisor.plan import ProcessPlan, inherited_environment, plan
from shoal_supervisor.runtime_folder import runtime_folder
from shoal_supervisor.state import StateFolder
from shoal_supervisor.status_file import MeshStatus
from shoal_supervisor.supervisor import Supervisor

# What the processes import and the supervisor does not.
PACKAGES = ("obstore", "uvloop")
TORCH_PACKAGES = ("safetensors", "torch", "transformers")


@dataclass(frozen=True)
class PreparedMesh:
    """A mesh whose folder is held and whose every part is there."""

    options: MeshOptions
    state: StateFolder
    alive: int
    plan: list[ProcessPlan]
    models: frozenset[str]
    operator_token: str
    """What it is called with by those who started it; empty where it asks for no tokens."""


@contextlib.contextmanager
def prepared(options: MeshOptions, say: Callable[[str], None]) -> Iterator[PreparedMesh]:
    """Checks everything that can be checked, and holds the state folder for the block.

    Raises:
        CannotStart: something is missing, taken, or not allowed.
    """
    state = StateFolder(options.state)
    _check_packages(options)
    models = requested_models.profiles_of(options.models)
    devices.check(options, models.values())
    with state.held(), alive_lock(state) as alive:
        ports.check_free(options.port)
        if not options.nats_url:
            broker.find_binary()
        _check_tokens(options)
        token = operator_token.prepare(state, wanted=options.tokens is not None)
        sidecar = sidecar_build.sidecar_binary(say)
        with runtime_folder(state) as sockets:
            processes = plan(
                options,
                state,
                sockets,
                broker.external(options.nats_url, options.nats_token) if options.nats_url else broker.prepare(state),
                sidecar,
                inherited_environment(),
                token,
            )
            yield PreparedMesh(options, state, alive, processes, frozenset(models), token)


async def supervise(
    mesh: PreparedMesh,
    report: Callable[[MeshStatus], None],
    stop: asyncio.Event,
) -> None:
    """Runs the mesh until `stop` is set or a signal comes; a second signal kills what is left.

    Raises:
        CannotStart: it did not come up; nothing is left running.
    """
    supervisor = Supervisor(mesh.plan, mesh.state, mesh.alive, mesh.options.address, report)

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    registry_log = mesh.state.log("registry")
    await supervisor.run(
        stop,
        lambda: requested_models.wait_ready(mesh.options.address, mesh.models, registry_log, mesh.operator_token),
    )


def _check_tokens(options: MeshOptions) -> None:
    if options.tokens is not None:
        try:
            tokens.read(options.tokens.expanduser())
        except tokens.BadTokens as error:
            raise CannotStart(str(error)) from None


def _check_packages(options: MeshOptions) -> None:
    needed = PACKAGES + (TORCH_PACKAGES if options.workers else ())
    missing = [name for name in needed if util.find_spec(name) is None]
    if missing:
        raise CannotStart(
            f"Python packages are missing ({', '.join(missing)}): install them with `pip install 'shoal[server,torch]'`"
        )
