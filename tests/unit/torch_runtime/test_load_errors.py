"""Models that cannot be loaded, and what the error says of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shoal_torch_runtime.encoder import load
from shoal_torch_runtime.errors import LoadError
from shoal_torch_runtime.model_spec import ModelSpec

PROFILE = {"encode": {"dimensions": 384, "max_tokens": 512, "pooling": "mean"}, "element_type": "f32"}
SPEC = ModelSpec(32, 200, "mean", "f32")


@pytest.fixture
def folder(tiny) -> Path:
    """A tiny BERT that loads."""
    saved = tiny("BertConfig")
    load(saved, SPEC)
    return saved


def _refused(folder: Path, says: str, spec: ModelSpec = SPEC) -> None:
    with pytest.raises(LoadError, match=says):
        load(folder, spec)


def _edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _edit_weights(folder: Path, edit: Any) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_pickle_weights_are_never_read(folder: Path):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    _refused(folder, r"holds pickle weights \(pytorch_model.bin\); only safetensors are loaded")


def test_missing_weights_are_named(folder: Path):
    (folder / "model.safetensors").unlink()
    _refused(folder, "model.safetensors is missing")


def test_a_missing_folder_is_named(tmp_path: Path):
    _refused(tmp_path / "nowhere", "config.json is missing in .*nowhere")


def test_a_missing_shard_is_named(folder: Path):
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"embeddings.LayerNorm.bias": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _refused(folder, "model-00001-of-00002.safetensors")


def test_a_cut_weights_file_is_an_error(folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    _refused(folder, "weights in .* cannot be read")


def test_wrong_dimensions_name_the_field(minilm: Path):
    says = "encode.dimensions: profile says dimensions 385, the model has 384"
    _refused(minilm, says, ModelSpec(385, 512, "mean", "f32"))


def test_too_many_positions_name_the_field(minilm: Path):
    _refused(minilm, "encode.max_tokens: profile says 513, the model has 512", ModelSpec(384, 513, "mean", "f32"))


def test_positions_taken_by_roberta_for_padding_do_not_count(tiny):
    saved = tiny("RobertaConfig")
    load(saved, ModelSpec(32, 298, "mean", "f32"))
    _refused(saved, "encode.max_tokens: profile says 299, the model has 298", ModelSpec(32, 299, "mean", "f32"))


def test_lacking_weights_are_named(folder: Path):
    _edit_weights(folder, lambda tensors: tensors.pop("encoder.layer.1.attention.self.query.weight"))
    _refused(folder, "lack weights of the model: encoder.layer.1.attention.self.query.weight")


def test_a_lacking_pooler_is_no_fault(folder: Path):
    def without_pooler(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("pooler")]:
            del tensors[name]

    _edit_weights(folder, without_pooler)
    load(folder, SPEC)


def test_weights_of_another_shape_are_named(folder: Path):
    _edit_config(folder, intermediate_size=80)
    _refused(folder, r"encoder.layer.0.intermediate.dense.bias is \(64,\), not \(80,\)")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, value: float):
    _edit_weights(folder, lambda tensors: tensors["encoder.layer.2.output.dense.bias"].__setitem__(0, value))
    _refused(folder, "not finite: encoder.layer.2.output.dense.bias")


def test_code_of_a_repository_is_never_run(folder: Path):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    _edit_config(folder, model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    _refused(folder, "model_type 'evil' is not known to transformers and code of the repository is not run")


def test_code_beside_a_native_architecture_is_ignored(folder: Path):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    _edit_config(folder, auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    load(folder, SPEC)


def test_a_broken_config_is_named(folder: Path):
    (folder / "config.json").write_text("{")
    _refused(folder, "config.json cannot be read")


def test_quantized_weights_are_refused(folder: Path):
    _edit_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    _refused(folder, "quantization_config")


def test_an_encoder_decoder_is_refused(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "t5")
    (tmp_path / "t5" / "config.json").write_text(json.dumps({"model_type": "t5", "d_model": 32}))
    _refused(tmp_path / "t5", "encoder-decoder")


def test_a_profile_is_read():
    assert ModelSpec.parse(json.dumps(PROFILE)) == ModelSpec(384, 512, "mean", "f32")


def test_a_tuned_element_type_wins_on_its_hardware():
    tuned = PROFILE | {"tuned": {"cuda": {"element_type": "bf16"}, "cpu": {"element_type": None}}}
    assert ModelSpec.parse(json.dumps(tuned), "cuda:1").element_type == "bf16"
    assert ModelSpec.parse(json.dumps(tuned), "cpu").element_type == "f32"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "encode.dimensions is missing"),
        (json.dumps(PROFILE | {"element_type": "f16"}), "element_type must be one of"),
        (json.dumps(PROFILE | {"encode": {"dimensions": 0, "max_tokens": 1, "pooling": "mean"}}), "encode.dimensions"),
        (json.dumps(PROFILE | {"encode": {"dimensions": 1, "max_tokens": 1, "pooling": "max"}}), "encode.pooling"),
    ],
)
def test_a_profile_that_cannot_be_used_names_the_field(text: str, says: str):
    with pytest.raises(LoadError, match=says):
        ModelSpec.parse(text)
