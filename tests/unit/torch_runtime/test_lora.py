"""LoRA: rows of different adapters in one forward, against PEFT itself; and what is refused before it runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, PreTrainedModel

from shoal_common.adapter_config import AdapterError
from shoal_torch_runtime import lora_weights, packed_attention
from shoal_torch_runtime.forward import PackedForward
from shoal_torch_runtime.lora import Adapted, Adapter, Rows
from shoal_torch_runtime.packed_batch import PackedBatch

OPTIONS: list[dict[str, Any]] = [
    {"r": 1},
    {"r": 64, "lora_alpha": 16},
    {"r": 8, "use_rslora": True, "lora_alpha": 24},
    {"r": 4, "rank_pattern": {"first": 16}, "alpha_pattern": {r".*\.1\..*": 3}},
    {"r": 16, "layers_to_transform": [0, 2], "layers_pattern": "layers?"},
    {"r": 8, "init_lora_weights": "gaussian", "lora_dropout": 0.1},
    {"r": 2, "exclude_modules": ["last"]},
]
"""`first` and `last` stand for names of the architecture's modules."""
ARCHITECTURES = {
    "BertConfig": ("query", "key", "value", "dense"),
    "Qwen2Config": ("q_proj", "v_proj", "o_proj", "down_proj"),
}


def base(folder: Path) -> PreTrainedModel:
    arguments = {"add_pooling_layer": False} if "Bert" in folder.name else {}
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, **arguments).eval()
    model.set_attn_implementation(packed_attention.NAME)
    return model


def trained(folder: Path, into: Path, seed: int, *, task: str | None = None, **keys: Any) -> Path:
    """An adapter of random values on a base, as PEFT saves it."""
    torch.manual_seed(seed)
    model = get_peft_model(AutoModel.from_pretrained(folder).eval(), LoraConfig(task_type=task, **keys))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_" in name:
                tensor.normal_(std=0.05)
    model.save_pretrained(str(into))
    return into


def with_names(options: dict[str, Any], targets: Sequence[str]) -> dict[str, Any]:
    text = json.dumps(options).replace('"first"', f'"{targets[0]}"').replace('"last"', f'"{targets[-1]}"')
    return {"target_modules": list(targets), **json.loads(text)}


def reference(folder: Path, adapter: Path | None, rows: list[np.ndarray]) -> list[torch.Tensor]:
    """Each row alone through PEFT."""
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.inference_mode():
        return [model(input_ids=torch.from_numpy(row.astype(np.int64))[None]).last_hidden_state[0] for row in rows]


def together(adapted: Adapted, parts: Sequence[tuple[Adapter | None, list[np.ndarray]]]) -> list[list[torch.Tensor]]:
    """Rows of several adapters in one forward; the hidden states of each row, by part."""
    rows = [row for _, part in parts for row in part]
    batch = PackedBatch(np.concatenate(rows), np.array([len(row) for row in rows], np.int32))
    ends = list(itertools.accumulate(sum(map(len, part)) for _, part in parts))
    spans = [
        Rows(adapter, end - sum(map(len, part)), end)
        for (adapter, part), end in zip(parts, ends, strict=True)
        if adapter is not None
    ]
    with torch.inference_mode(), adapted.rows_of(spans):
        states = iter(PackedForward(adapted.model)(batch).split(batch.lengths.tolist()))
    return [[next(states) for _ in part] for _, part in parts]


def rows_of(seed: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 500, length, dtype=np.int32) for length in sorted(rng.integers(1, 60, count))]


def cosine(found: torch.Tensor, expected: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(found, expected, dim=-1).min().item()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_many_adapters_equal_peft(tiny: Callable, tmp_path: Path, architecture: str) -> None:
    more = {"num_key_value_heads": 2} if architecture == "Qwen2Config" else {}
    folder, targets = tiny(architecture, **more), ARCHITECTURES[architecture]
    model = base(folder)
    adapted = Adapted(model)
    parts: list[tuple[Adapter | None, list[np.ndarray]]] = [(None, rows_of(99, 3))]
    expected = [reference(folder, None, parts[0][1])]
    for number, options in enumerate(OPTIONS):
        saved = trained(folder, tmp_path / str(number), number, **with_names(options, targets))
        rows = rows_of(number, 4)
        parts.append((lora_weights.read(saved, str(number), model), rows))
        expected.append(reference(folder, saved, rows))
    without = reference(folder, None, parts[1][1])
    for found_rows, expected_rows in zip(together(adapted, parts), expected, strict=True):
        for found, wanted in zip(found_rows, expected_rows, strict=True):
            assert cosine(found, wanted) >= 0.99999
            assert (found - wanted).abs().max() <= 1e-4
    assert cosine(expected[1][-1], without[-1]) < 0.999, "an adapter changes what it is given"


def test_a_row_alone_equals_the_row_among_64_of_40_adapters(tiny: Callable, tmp_path: Path) -> None:
    folder, targets = tiny("BertConfig"), ARCHITECTURES["BertConfig"]
    model = base(folder)
    adapted = Adapted(model)
    parts: list[tuple[Adapter | None, list[np.ndarray]]] = []
    for number in range(40):
        saved = trained(folder, tmp_path / str(number), number, r=1 + number % 16, target_modules=list(targets))
        parts.append((lora_weights.read(saved, str(number), model), rows_of(number, 1 + (number < 24))))
    assert sum(len(rows) for _, rows in parts) == 64
    for (adapter, rows), found in zip(parts, together(adapted, parts), strict=True):
        for row, states in zip(rows, found, strict=True):
            [[alone]] = together(adapted, [(adapter, [row])])
            assert (states - alone).abs().max() <= 1e-5


def test_the_base_is_left_as_it_is_and_its_weights_are_not_copied(tiny: Callable) -> None:
    model = base(tiny("BertConfig"))
    layers = dict(model.named_modules())
    adapted = Adapted(model)
    assert dict(model.named_modules()) == layers
    assert all(type(one) is torch.nn.Linear for name, one in layers.items() if name.endswith(("query", "dense")))
    own = {tensor.data_ptr() for tensor in model.parameters()}
    assert {tensor.data_ptr() for tensor in adapted.model.parameters()} == own


def test_an_adapter_trained_inside_a_head_or_with_a_pooler_is_read(tiny: Callable, tmp_path: Path) -> None:
    folder = tiny("BertConfig")
    saved = trained(folder, tmp_path / "a", 0, r=2, target_modules=["query", "dense"])
    tensors = load_file(saved / lora_weights.WEIGHTS)
    assert any("pooler" in name for name in tensors)
    inside = {name.replace("base_model.model.", "base_model.model.bert."): one for name, one in tensors.items()}
    model = base(folder)
    plain = lora_weights.read(saved, "a", model)
    save_file(inside, saved / lora_weights.WEIGHTS)
    keys = json.loads((saved / lora_weights.CONFIG).read_text())
    for targets in (["query", "dense"], r"bert\..*(query|dense)"):
        (saved / lora_weights.CONFIG).write_text(json.dumps({**keys, "target_modules": targets}))
        assert lora_weights.read(saved, "a", model).modules.keys() == plain.modules.keys()


Change = Callable[[dict[str, torch.Tensor]], object]


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return min(name for name in tensors if "query.lora_A" in name)


FAULTS: dict[str, tuple[Change, str]] = {
    "half the layers are missing": (
        lambda t: [t.pop(name) for name in list(t) if ".layer.1." in name],
        "lacks tensors .*layer.1.attention.self.key.lora_A.weight.* more",
    ),
    "transposed": (
        lambda t: t.update({name: one.T.contiguous() for name, one in t.items()}),
        r"other shapes .*is \(32, 4\), not \(4, 32\)",
    ),
    "another width": (
        lambda t: t.update({_first(t): torch.zeros(4, 33)}),
        r"is \(4, 33\), not \(4, 32\)",
    ),
    "not a number": (lambda t: t[_first(t)].fill_(torch.nan), "not finite: encoder.layer.0"),
    "endless": (lambda t: t[_first(t)].fill_(torch.inf), "not finite"),
    "whole numbers": (lambda t: t.update({_first(t): t[_first(t)].int()}), "other types .*is I32"),
    "something else": (lambda t: t.update({"base_model.model.classifier.weight": torch.zeros(2)}), "classifier.weight"),
    "DoRA": (
        lambda t: t.update({_first(t).replace("lora_A.weight", "lora_magnitude_vector"): torch.zeros(32)}),
        "lora_magnitude_vector",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_weights_that_do_not_fit_are_refused_by_name(tiny: Callable, tmp_path: Path, case: str) -> None:
    folder = tiny("BertConfig")
    saved = trained(folder, tmp_path / "a", 0, r=4, target_modules=["query", "key", "value"])
    change, said = FAULTS[case]
    tensors = load_file(saved / lora_weights.WEIGHTS)
    change(tensors)
    save_file(tensors, saved / lora_weights.WEIGHTS)
    with pytest.raises(AdapterError, match=said):
        lora_weights.read(saved, "a", base(folder))


@pytest.mark.parametrize(
    ("targets", "said"),
    [(["nothing"], "whose linear layers are .*'query'"), (["LayerNorm", "query"], "LayerNorm is a LayerNorm")],
)
def test_modules_that_cannot_be_adapted_are_named(
    tiny: Callable, tmp_path: Path, targets: list[str], said: str
) -> None:
    folder = tiny("BertConfig")
    saved = trained(folder, tmp_path / "a", 0, r=4, target_modules=["query"])
    keys = json.loads((saved / lora_weights.CONFIG).read_text())
    (saved / lora_weights.CONFIG).write_text(json.dumps({**keys, "target_modules": targets}))
    with pytest.raises(AdapterError, match=said):
        lora_weights.read(saved, "a", base(folder))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04" + bytes(50), b"\x80\x04" + bytes(50)])
def test_files_that_are_not_there_or_something_else(tiny: Callable, tmp_path: Path, data: bytes) -> None:
    folder = tiny("BertConfig")
    saved = trained(folder, tmp_path / "a", 0, r=4, target_modules=["query"])
    (saved / lora_weights.WEIGHTS).write_bytes(data)
    with pytest.raises(AdapterError, match="no safetensors file"):
        lora_weights.read(saved, "a", base(folder))
    (saved / lora_weights.WEIGHTS).unlink()
    with pytest.raises(AdapterError, match=r"adapter_model.safetensors: cannot be read: No such file"):
        lora_weights.read(saved, "a", base(folder))
