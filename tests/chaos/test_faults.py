"""Each process is killed under load: every answer right or typed, and the mesh whole again by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import shoal
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import texts
from tests.support.load import CheckedLoad

LOAD_S = 4.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMesh]:
    with EmbeddedMesh(tmp_path_factory.mktemp("chaos"), models=["minilm"]) as running:
        running.wait_for_model("minilm")
        yield running


@pytest.mark.parametrize("process", ["worker-0", "runtime", "sidecar", "registry", "scheduler", "lora-store", "nats"])
def test_a_killed_process_costs_no_answer(mesh: EmbeddedMesh, process: str) -> None:
    restarts = mesh.restarts()
    with CheckedLoad(mesh.address, timeout_s=30) as load:
        load.wait_for_answers(20)
        os.kill(mesh.pid(process), signal.SIGKILL)
        load.run_for(LOAD_S)
        mesh.wait_whole(timeout_s=60)
        load.wait_for_answers(20)
    assert load.wrong == [], f"{process}: wrong values"
    assert load.failed == [], f"{process}: calls failed with a 30 s deadline"
    assert load.answered > 40
    if process != "runtime":
        assert mesh.restarts() > restarts, "the supervisor started it again"


@pytest.mark.parametrize("process", ["worker-0", "runtime"])
def test_values_are_the_same_after_a_restart(mesh: EmbeddedMesh, process: str) -> None:
    sample = texts.mixed(seed=21, count=16)
    with shoal.connect(mesh.address) as client:
        before = client.encode(sample, model="minilm")
        pid = mesh.pid(process)
        os.kill(pid, signal.SIGKILL)
        after = client.encode(sample, model="minilm")
        mesh.wait_whole(timeout_s=60)
    assert mesh.pid(process) != pid
    assert np.abs(after - before).max() <= 1e-5


def test_a_killed_gateway_fails_its_calls_with_a_typed_status(mesh: EmbeddedMesh) -> None:
    with CheckedLoad(mesh.address, timeout_s=30) as load:
        load.wait_for_answers(20)
        os.kill(mesh.pid("gateway"), signal.SIGKILL)
        load.run_for(1.0)
        mesh.wait_whole(timeout_s=60)
        load.wait_for_answers(20)
    assert load.wrong == []
    assert {error.code for error in load.failed} <= {"UNAVAILABLE"}


def test_a_stopped_worker_costs_no_answer(mesh: EmbeddedMesh) -> None:
    pid = mesh.pid("worker-0")
    with CheckedLoad(mesh.address, timeout_s=30) as load:
        load.wait_for_answers(20)
        os.kill(pid, signal.SIGSTOP)
        load.run_for(3.0)
        os.kill(pid, signal.SIGCONT)
        load.wait_for_answers(20)
    assert load.wrong == [] and load.failed == []
