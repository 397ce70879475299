"""`shoal up`, `shoal status` and `shoal down` as a person meets them, on a mesh of fake processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal_supervisor import ports, status_file
from shoal_supervisor.leftovers import leftovers
from shoal_supervisor.shutdown import stop_mesh
from shoal_supervisor.state import StateFolder
from tests.unit.supervisor.waiting import until

SHOAL = Path(sys.executable).with_name("shoal")
READY_S = 60.0


@pytest.fixture
def environment(fake_environment: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **fake_environment}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder; what runs in it is ended after the test."""
    state = StateFolder(tmp_path / "state")
    yield state
    stop_mesh(state, 30.0)


def shoal(*arguments: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SHOAL, *arguments], env=environment, capture_output=True, text=True, timeout=READY_S, check=False
    )


def is_ready(state: StateFolder) -> bool:
    status = status_file.read(state.status)
    return status is not None and status.state == "ready"


def up(state: StateFolder) -> list[str | Path]:
    return ["up", "--state", state.path, "--port", str(ports.free_port())]


def test_up_in_the_foreground_until_ctrl_c(state: StateFolder, environment: dict[str, str]):
    with subprocess.Popen(
        [SHOAL, *up(state)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        until(lambda: is_ready(state), "the mesh is ready")
        # As a terminal does: to the whole group.
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=READY_S)[0]
    assert process.returncode == 0, output
    lines = output.splitlines()
    assert any(line.startswith("gateway is ready after ") for line in lines)
    assert any(line.startswith("Shoal is ready at 127.0.0.1:") for line in lines)
    assert lines[-1] == "Stopped."
    assert "ended (" not in output, "Ctrl-C reached a child before the supervisor stopped it"
    assert leftovers(state) == []


def test_up_on_a_terminal(state: StateFolder, environment: dict[str, str]):
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [SHOAL, *up(state), "--no-first-request"],
        env={**environment, "TERM": "xterm", "COLUMNS": "120"},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
    ) as process:
        os.close(its_end)
        shown = b""
        while b"Ctrl-C stops it." not in shown:
            shown += os.read(terminal, 4096)
        process.terminate()
        assert process.wait(READY_S) == 0
    os.close(terminal)
    # The table stands once more when it is complete.
    table = shown[shown.rindex(b"sidecar") :].decode()
    for name in ("nats", "registry", "scheduler", "worker-0", "gateway", "lora-store"):
        assert name in table


def test_detach_status_down(state: StateFolder, environment: dict[str, str]):
    done = shoal(*up(state), "--detach", environment=environment)
    assert done.returncode == 0, done.stderr
    assert "Shoal is ready at" in done.stdout

    done = shoal("status", "--state", state.path, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker-0" in done.stdout
    assert "model minilm: ready" in done.stdout

    done = shoal("status", "--state", state.path, "--json", environment=environment)
    shown: dict[str, Any] = json.loads(done.stdout)
    assert shown["all_ready"]
    assert all(process["usage"]["memory_bytes"] > 0 for process in shown["processes"])

    done = shoal("up", "--state", state.path, "--detach", environment=environment)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("shoal: a mesh runs in ")

    done = shoal("down", "--state", state.path, environment=environment)
    assert (done.returncode, done.stdout) == (0, f"stopped the mesh in {state.path}\n")
    assert leftovers(state) == []
    done = shoal("down", "--state", state.path, environment=environment)
    assert (done.returncode, done.stdout) == (0, f"nothing runs in {state.path}\n")
    done = shoal("status", "--state", state.path, environment=environment)
    assert done.returncode == 3


def test_status_of_a_mesh_that_is_not_whole(state: StateFolder, environment: dict[str, str]):
    assert shoal(*up(state), "--detach", environment=environment).returncode == 0
    status = status_file.read(state.status)
    assert status
    pid = status.process("gateway").pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        done = shoal("status", "--state", state.path, environment=environment)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert "the gateway does not answer" in done.stdout


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_start_that_fails_is_one_line(state: StateFolder, environment: dict[str, str], detach: list[str]):
    environment["FAKE_FAULTS"] = json.dumps({"registry": {"exit": 2}})
    done = shoal(*up(state), *detach, environment=environment)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("shoal: registry does not start (exit status 2): registry was told to fail")
    assert leftovers(state) == []


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_taken_port_is_one_line(state: StateFolder, environment: dict[str, str], detach: list[str]):
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = shoal("up", "--state", state.path, "--port", port, *detach, environment=environment)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith(f"shoal: port {port} is taken")


def test_register_without_a_mesh_says_what_to_do(state: StateFolder, environment: dict[str, str], tmp_path: Path):
    (tmp_path / "profile.yaml").touch()
    done = shoal("models", "register", tmp_path / "profile.yaml", "--state", state.path, environment=environment)
    assert done.returncode == 2
    assert "shoal up" in one_line(done.stderr)


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text
