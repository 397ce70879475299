"""The sim runtime with the real processes: a mesh without torch answers, and fails as its file says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import shoal
from shoal.v1 import inference_pb2 as pb
from shoal_supervisor import ports, usage
from shoal_supervisor.embedded import EmbeddedMesh
from shoal_supervisor.errors import CannotStart
from tests.support import sim, texts

SHOAL = Path(sys.executable).with_name("shoal")
COMMAND_S = 120.0
POISON = "poisonous fish"
TOLERANCE = 1e-6
pytestmark = [pytest.mark.mesh, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMesh]:
    """Two simulated workers and no other; one model answers at once, one row ends its runtime."""
    folder = tmp_path_factory.mktemp("sim")
    behaviour = sim.sim_file(folder, faults={"crash_on_tokens": [list(sim.token_ids(POISON))]})
    wide = sim.sim_profile(folder, "wide", encode={"dimensions": 300})
    with EmbeddedMesh(
        folder / "state", workers=0, sim=behaviour, sim_workers=2, models=[sim.SIM_PROFILE, wide]
    ) as mesh:
        yield mesh


@pytest.fixture
def client(mesh: EmbeddedMesh) -> Iterator[shoal.Mesh]:
    with shoal.connect(mesh.address) as client:
        yield client


def test_rows_are_those_of_the_function_whatever_the_batch(client: shoal.Mesh):
    sent = texts.mixed(3, 200, most_tokens=300)
    np.testing.assert_allclose(client.encode(sent, model="sim"), sim.encode(sent), atol=TOLERANCE)
    for text in sent[:5]:
        np.testing.assert_allclose(client.encode(text, model="sim"), sim.encode([text])[0], atol=TOLERANCE)
    np.testing.assert_allclose(client.encode(sent[:9], model="wide"), sim.encode(sent[:9], 300), atol=TOLERANCE)


def test_the_mesh_has_its_workers_and_no_torch(mesh: EmbeddedMesh):
    assert usage.runtimes(mesh.pid("sidecar")) == []
    done = command("status", "--state", mesh.state)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("worker-sim-0", "worker-sim-1", "model sim: ready", "model wide: ready"):
        assert name in done.stdout
    assert "torch" not in done.stdout


def test_a_row_that_crashes_the_runtime_fails_alone(mesh: EmbeddedMesh):
    sent = [*texts.mixed(5, 8, most_tokens=40), POISON]
    request = pb.EncodeRequest(model="sim", items=[pb.Item(text=text) for text in sent])
    with grpc.insecure_channel(mesh.address) as channel:
        call = channel.unary_unary(
            "/shoal.v1.InferenceService/Encode",
            request_serializer=pb.EncodeRequest.SerializeToString,
            response_deserializer=pb.EncodeResponse.FromString,
        )
        response: pb.EncodeResponse = call(request, timeout=60)
    assert response.provenance.runtime == "sim"
    assert [result.status.reason for result in response.results] == [""] * 8 + ["RUNTIME_CRASHED"]
    vectors = np.stack([np.frombuffer(result.dense.data, "<f4") for result in response.results[:8]])
    np.testing.assert_allclose(vectors, sim.encode(sent[:8]), atol=TOLERANCE)


def test_an_unknown_key_in_the_sim_file_is_named(tmp_path: Path):
    behaviour = sim.sim_file(tmp_path, cost={"tokn_us": 3})
    done = command(
        *("up", "--state", tmp_path / "state", "--port", ports.free_port()),
        *("--workers", 0, "--sim", behaviour, "--sim-workers", 1, "--model", sim.SIM_PROFILE),
    )
    assert done.returncode == 1
    assert f"the sim file {behaviour}: cost.tokn_us: unknown field" in done.stderr
    assert "`token_us`" in done.stderr, "what is allowed is not named"
    assert "Traceback" not in done.stderr


def test_a_load_that_fails_says_so(tmp_path: Path):
    behaviour = sim.sim_file(tmp_path, faults={"fail_load": True})
    mesh = EmbeddedMesh(tmp_path / "state", workers=0, sim=behaviour, sim_workers=1, models=[sim.SIM_PROFILE])
    with pytest.raises(CannotStart, match=r"model sim cannot be loaded: faults\.fail_load is set for sim:0"):
        mesh.start()
    mesh.stop()


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SHOAL, *map(str, arguments)], capture_output=True, text=True, timeout=COMMAND_S, check=False)
