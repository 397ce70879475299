"""A whole mesh for tests and benchmarks: started for a block, gone after it, even if the caller is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import shoal
from shoal_supervisor import background, operator_token, ports, status_file, usage
from shoal_supervisor.options import MeshOptions
from shoal_supervisor.state import StateFolder
from shoal_supervisor.status_file import MeshStatus

STOP_S = 60.0
ANSWER_S = 5.0
POLL_S = 0.05
RUNTIMES = ("runtime", "torch-parent")
T = TypeVar("T")


class EmbeddedMesh:
    """A mesh in a state folder, supervised by a process of its own.

    with EmbeddedMesh(tmp_path) as mesh, shoal.connect(mesh.address) as client:
        client.encode(["a text"])
        os.kill(mesh.pid("worker-0"), signal.SIGKILL)
        mesh.wait_whole()
    """

    def __init__(
        self,
        state: Path,
        *,
        workers: int = 1,
        models: Sequence[str | Path] = ("minilm",),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        **options: Any,
    ) -> None:
        """`env` is added to the environment of every process; a port is found when none is given.

        Further options are those of MeshOptions.
        """
        self.folder = StateFolder(state)
        self.options = MeshOptions(
            state=self.folder.path,
            port=port or ports.free_port(),
            workers=workers,
            models=tuple(map(str, models)),
            exit_with_parent=True,
            **options,
        )
        self._environment = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.options.address

    @property
    def state(self) -> Path:
        """The state folder, for `shoal status --state` and its like."""
        return self.folder.path

    def start(self) -> Self:
        """Returns when every process and every model is ready.

        Raises:
            CannotStart: it does not come up; the reason names the log to read.
        """
        self._process = background.start(self.options, self._environment)
        background.follow(self._process, self.options, lambda _: None)
        return self

    def stop(self) -> int:
        """Ends the mesh in order; the supervisor's exit status (negative: the signal that killed it)."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the supervisor alone: everything else is to end by itself."""
        self._end(signal.SIGKILL)

    def let_go(self) -> None:
        """Closes the pipe that holds the supervisor, as this process's death would."""
        assert self._process is not None and self._process.stdin is not None, "the mesh was not started"
        self._process.stdin.close()

    def client(self) -> shoal.Mesh:
        """A connection to it that may do everything, whatever tokens it asks others for."""
        return shoal.connect(self.address, token=operator_token.read(self.folder))

    def mesh_status(self) -> MeshStatus:
        """What status.json says now."""
        status = status_file.read(self.folder.status)
        assert status is not None, f"{self.folder.status} is not there"
        return status

    def status(self) -> dict[str, Any]:
        """What status.json says now, as plain JSON."""
        return self.mesh_status().model_dump(mode="json")

    def pid(self, name: str) -> int:
        """A process's pid, waited for while it has none: a name of the status, "runtime" or "torch-parent"."""
        return _until(lambda: self._pid(name), f"{name} runs")

    def restarts(self) -> int:
        """How often the supervisor has started a process again, over all of them."""
        return sum(process.restarts for process in self.mesh_status().processes)

    def wait_whole(self, timeout_s: float = 60.0) -> None:
        """Returns when every process serves and every model is ready."""
        with self.client() as client:
            _until(lambda: self.mesh_status().all_ready and _models_ready(client), "the mesh is whole", timeout_s)

    def wait_for_model(self, name: str, timeout_s: float = 60.0) -> None:
        """Returns when a model is ready; `name` may be an alias."""
        with self.client() as client:
            _until(lambda: _model_state(client, name) == "ready", f"model {name} is ready", timeout_s)

    def wait_until_unknown(self, name: str, timeout_s: float = 60.0) -> None:
        """Returns when the gateway knows no model or alias of that name."""
        with self.client() as client:
            _until(lambda: _model_state(client, name) == "unknown", f"model {name} is unknown", timeout_s)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _pid(self, name: str) -> int | None:
        status = self.mesh_status()
        if name in RUNTIMES:
            found = usage.runtimes(status.process("sidecar").pid)
            return next((each.pid for each in found if each.name == name), None)
        return status.pid if name == "supervisor" else status.process(name).pid

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            return self._process.wait(STOP_S)
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def _model_state(client: shoal.Mesh, name: str) -> str:
    """A model's state; "unknown" where the mesh has none of that name, and empty when it does not answer."""
    try:
        return client.model(name, timeout=ANSWER_S).state
    except shoal.NotFound:
        return "unknown"
    except shoal.CallError:
        return ""


def _models_ready(client: shoal.Mesh) -> bool:
    try:
        return all(model.state == "ready" for model in client.models(timeout=ANSWER_S))
    except shoal.CallError:
        return False


def _until(condition: Callable[[], T | None], what: str, timeout_s: float = 30.0) -> T:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)
    return value
