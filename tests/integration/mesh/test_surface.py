"""What other tools see: reflection, health, buf curl, ModelService and the command line."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import shoal
from shoal.v1 import inference_pb2, models_pb2, models_pb2_grpc
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import reference
from tests.support.raw import RawClient

BIN = Path(sys.executable).parent


def run(*command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def test_buf_curl_needs_nothing_of_ours(mesh: EmbeddedMesh) -> None:
    body = json.dumps({"model": "minilm", "items": [{"text": "Hello, Shoal"}]})
    url = f"http://{mesh.address}/shoal.v1.InferenceService/Encode"
    done = run(str(BIN / "buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", body, url)
    assert done.returncode == 0, done.stderr
    tensor = json.loads(done.stdout)["results"][0]["dense"]
    vector = np.frombuffer(base64.b64decode(tensor["data"]), "<f4")
    assert tensor["shape"] == [384]
    assert np.abs(vector - reference.encode(["Hello, Shoal"])[0]).max() <= 1e-4
    with grpc.insecure_channel(mesh.address) as channel:
        request = inference_pb2.EncodeRequest(model="minilm", items=[inference_pb2.Item(text="Hello, Shoal")])
        ours = RawClient(channel).encode(request).results[0].dense
    assert base64.b64decode(tensor["data"]) == ours.data, "the same text sent alone gives the same bytes"
    with shoal.connect(mesh.address) as client:
        assert client.encode(["Hello, Shoal"], model="minilm").tobytes() == ours.data


def test_every_grpc_server_has_health_and_reflection(mesh: EmbeddedMesh) -> None:
    listening = {p["name"]: p["listen"] for p in mesh.status()["processes"] if p["listen"] and p["name"] != "nats"}
    assert len(listening) >= 6
    for name, address in listening.items():
        with grpc.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
            first = next(iter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)))
            assert first.status == health_pb2.HealthCheckResponse.SERVING, name
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            services = next(iter(stub.ServerReflectionInfo(asked, timeout=10))).list_services_response.service
            assert any("ealth" in service.name for service in services), name


def test_model_service(mesh: EmbeddedMesh) -> None:
    with grpc.insecure_channel(mesh.address) as channel:
        stub = models_pb2_grpc.ModelServiceStub(channel)
        models = {m.name: m for m in stub.ListModels(models_pb2.ListModelsRequest(), timeout=10).models}
        assert models["minilm"].state == models_pb2.MODEL_STATE_READY
        assert (models["minilm"].dimensions, models["minilm"].max_tokens) == (384, 512)
        with pytest.raises(grpc.RpcError) as refused:
            stub.GetModel(models_pb2.GetModelRequest(model="minilmm"), timeout=10)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND  # pyright: ignore[reportAttributeAccessIssue]
        first = next(iter(stub.WatchModels(models_pb2.WatchModelsRequest(), timeout=10)))
        assert first.snapshot and {m.name for m in first.models} >= {"minilm", "minilm-bf16"}


def test_command_line(mesh: EmbeddedMesh, tmp_path: Path) -> None:
    command = [str(BIN / "shoal")]
    target = ["--target", mesh.address]
    done = run(*command, "encode", "Hello, Shoal", "--json", *target)
    assert done.returncode == 0, done.stderr
    vector = np.array(json.loads(done.stdout)["vector"], np.float32)
    assert np.abs(vector - reference.encode(["Hello, Shoal"])[0]).max() <= 1e-4

    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"id": f"t{n}", "text": f"text number {n}"}) + "\n" for n in range(300)))
    out = tmp_path / "vectors.npy"
    done = run(*command, "encode", "--file", str(lines), "--out", str(out), *target)
    assert done.returncode == 0, done.stderr
    vectors = np.load(out)
    assert vectors.shape == (300, 384)
    assert np.abs(vectors[7] - reference.encode(["text number 7"])[0]).max() <= 1e-4

    done = run(*command, "encode", "--json", *target, stdin="from\nstandard input\n")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    done = run(*command, "models", "--json", *target)
    assert done.returncode == 0 and "minilm" in done.stdout
    done = run(*command, "encode", "x", "--model", "minilmm", *target)
    assert done.returncode == 1 and "minilm" in done.stderr and "Traceback" not in done.stderr
    done = run(*command, "status", "--state", str(mesh.state), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
