"""A Shoal service as a process of its own, as a test starts, kills and restarts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal_common import grpc_server
from tests.support.until import until


class Service:
    """`python -m <module>` with SHOAL_* settings, listening on a Unix socket in `folder`.

    `env` is added to its environment.
    """

    def __init__(
        self, module: str, folder: Path, name: str = "", env: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        self._module = module
        self._log = folder / f"{name or module}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix:{folder / (name or module)}.sock"
        given = {"listen": self.address, "log_level": "debug", **settings}
        asked = {f"SHOAL_{key.upper()}": str(value) for key, value in given.items()}
        self._env = {**os.environ, **(env or {}), **asked}

    def start(self) -> None:
        """Starts the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", self._module], env=self._env, stderr=log)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        assert self._process is not None
        return self._process.wait(15)

    async def is_serving(self) -> bool:
        """Whether its health service says SERVING."""
        async with grpc_server.channel(self.address) as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
            except grpc.aio.AioRpcError:
                return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    async def serving(self, timeout_s: float = 15.0) -> None:
        """Returns when it serves; fails naming its log."""
        await until(self.is_serving, timeout_s, f"{self._module} does not serve, see {self._log}")

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()
