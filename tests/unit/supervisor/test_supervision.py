"""A mesh of fake processes: it starts, mends itself, stops in order, and never leaves anything behind."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from shoal_supervisor import ports
from shoal_supervisor.embedded import EmbeddedMesh
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.leftovers import leftovers
from shoal_supervisor.shutdown import stop_mesh
from tests.unit.supervisor.conftest import MakeMesh
from tests.unit.supervisor.waiting import is_gone, until

NAMES = ("sidecar", "nats", "registry", "scheduler", "worker-0", "gateway", "lora-store")


def whole_again(mesh: EmbeddedMesh, name: str, old_pid: int | None) -> bool:
    process = mesh.mesh_status().process(name)
    return process.pid not in (None, old_pid) and mesh.mesh_status().all_ready


def test_a_mesh_starts_tells_and_stops(fake_mesh: MakeMesh):
    with fake_mesh(workers=2) as mesh:
        status = mesh.mesh_status()
        assert status.state == "ready"
        assert {process.name for process in status.processes} == {*NAMES, "worker-1"}
        pids = [mesh.pid("supervisor"), *(process.pid for process in status.processes)]
        assert len(set(leftovers(mesh.folder))) > len(NAMES)
        assert psutil.Process(mesh.pid("nats")).name() == "nats-server"
    assert all(pid and is_gone(pid) for pid in pids)
    assert leftovers(mesh.folder) == []
    assert mesh.mesh_status().state == "stopped"
    assert mesh.stop() == 0
    sockets = Path(status.process("registry").listen.removeprefix("unix:")).parent
    assert not sockets.exists()


def test_each_killed_process_comes_again(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        for name in NAMES:
            pid = mesh.pid(name)
            os.kill(pid, signal.SIGKILL)
            until(lambda name=name, pid=pid: whole_again(mesh, name, pid), f"{name} is back")
            process = mesh.mesh_status().process(name)
            assert (process.restarts, process.last_exit) == (1, "killed by SIGKILL")


def test_a_process_that_lived_is_started_again_at_once(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        pid = mesh.pid("nats")
        os.kill(pid, signal.SIGKILL)
        until(lambda: whole_again(mesh, "nats", pid), "the broker is back", timeout_s=2.0)


def test_nothing_outlives_a_killed_supervisor(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        assert len(leftovers(mesh.folder)) > len(NAMES)
        mesh.kill()
        until(lambda: not leftovers(mesh.folder), "every process has ended", timeout_s=20.0)


def test_a_stopped_process_does_not_outlive_a_killed_supervisor_s_successor(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        stuck = mesh.pid("worker-0")
        os.kill(stuck, signal.SIGSTOP)
        mesh.kill()
    with fake_mesh() as successor:
        assert is_gone(stuck)
        assert successor.mesh_status().all_ready


def test_the_broker_is_never_left_without_its_guard(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        pid = mesh.pid("nats")
        [guard] = psutil.Process(pid).children()
        guard.kill()
        until(lambda: whole_again(mesh, "nats", pid), "a guarded broker")
        assert is_gone(pid)
        assert psutil.Process(mesh.pid("nats")).children()


def test_a_successor_keeps_the_broker_s_port_and_token(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        access = (mesh.folder.broker / "access.json").read_text()
        listen = mesh.mesh_status().process("nats").listen
        mesh.kill()
    with fake_mesh() as mesh:
        assert (mesh.folder.broker / "access.json").read_text() == access
        assert mesh.mesh_status().process("nats").listen == listen


def test_a_folder_in_use_is_refused(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        with pytest.raises(CannotStart, match=rf"runs in .* already \(pid {mesh.pid('supervisor')}\)"):
            fake_mesh().start()
        assert mesh.mesh_status().all_ready


def test_a_taken_port_is_refused_before_anything_starts(fake_mesh: MakeMesh):
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        mesh = fake_mesh(port=port)
        with pytest.raises(CannotStart, match=f"port {port} is taken"):
            mesh.start()
    assert not mesh.folder.status.exists()


def test_an_unknown_model_is_refused_before_anything_starts(fake_mesh: MakeMesh):
    mesh = fake_mesh(models=("minilmm",))
    with pytest.raises(CannotStart, match=r"minilmm.*minilm"):
        mesh.start()
    assert not mesh.folder.status.exists()


@pytest.mark.parametrize("status", [1, 2])
def test_a_process_that_never_comes_up_fails_the_start(fake_mesh: MakeMesh, status: int):
    mesh = fake_mesh({"scheduler": {"exit": status}})
    with pytest.raises(CannotStart, match=rf"scheduler does not start \(exit status {status}\): .* was told to fail"):
        mesh.start()
    assert leftovers(mesh.folder) == []
    assert mesh.mesh_status().state == "failed"
    assert mesh.mesh_status().process("scheduler").restarts == {1: 3, 2: 1}[status]


def test_a_model_that_cannot_be_loaded_fails_the_start(fake_mesh: MakeMesh):
    mesh = fake_mesh({"gateway": {"fail": "no such weights"}})
    with pytest.raises(CannotStart, match="minilm cannot be loaded: no such weights"):
        mesh.start()
    assert leftovers(mesh.folder) == []


def test_it_is_stopped_from_outside(fake_mesh: MakeMesh):
    mesh = fake_mesh()
    assert not stop_mesh(mesh.folder, 30.0)
    with mesh:
        assert stop_mesh(mesh.folder, 30.0)
        assert leftovers(mesh.folder) == []
    assert not stop_mesh(mesh.folder, 30.0)


def test_it_ends_with_the_process_that_asked_for_it(fake_mesh: MakeMesh):
    with fake_mesh() as mesh:
        mesh.let_go()
        until(lambda: mesh.mesh_status().state == "stopped", "the mesh has ended")
        assert leftovers(mesh.folder) == []
