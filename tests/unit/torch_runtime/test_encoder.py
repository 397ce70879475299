"""An encoder's values, against transformers' own padded forward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from shoal_torch_runtime.encoder import Encoder, load
from shoal_torch_runtime.errors import BatchError
from shoal_torch_runtime.model_spec import ElementChoice, ModelSpec, Pooling

Rows = list[np.ndarray]


def _rows(lengths: list[int], vocabulary: int = 30_000, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocabulary, length, dtype=np.int32) for length in lengths]


def _encode(encoder: Encoder, rows: Rows) -> np.ndarray:
    return encoder.forward(np.concatenate(rows), np.array([len(row) for row in rows], np.int32))


def _reference(folder: Path, rows: Rows, pooling: Pooling = "mean") -> np.ndarray:
    """Each row alone through transformers with eager attention, which shares no kernel with ours."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [model(input_ids=torch.from_numpy(row.astype(np.int64))[None]).last_hidden_state[0] for row in rows]
    pools = {"mean": lambda state: state.mean(0), "cls": lambda state: state[0], "last": lambda state: state[-1]}
    return torch.stack([pools[pooling](state) for state in states]).numpy()


def _padded_reference(folder: Path, rows: Rows) -> np.ndarray:
    """All rows padded into one batch, mean-pooled under the mask, as sentence-transformers does."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    width = max(len(row) for row in rows)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    ids = torch.tensor([row.tolist() + [0] * (width - len(row)) for row in rows])
    with torch.inference_mode():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask[:, :, None].float()
    return ((states * weights).sum(1) / weights.sum(1)).numpy()


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.fixture(scope="module")
def encoder(minilm: Path) -> Encoder:
    return load(minilm, ModelSpec(384, 512, "mean", "f32"))


@pytest.mark.parametrize("seed", range(3))
def test_packed_rows_equal_a_padded_forward(encoder: Encoder, minilm: Path, seed: int):
    lengths = sorted([1, 2, 512, *np.random.default_rng(seed).integers(1, 130, 20).tolist()])
    rows = _rows(lengths, seed=seed)
    found, expected = _encode(encoder, rows), _padded_reference(minilm, rows)
    assert encoder.packs
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert _cosines(found, expected).min() >= 0.99999, f"seed {seed}"
    assert np.abs(found - expected).max() <= 1e-4, f"seed {seed}"


def test_a_row_alone_equals_the_row_among_64(encoder: Encoder):
    rows = _rows(sorted(np.random.default_rng(1).integers(1, 200, 64).tolist()))
    together = _encode(encoder, rows)
    alone = np.concatenate([_encode(encoder, [row]) for row in rows])
    assert np.abs(together - alone).max() <= 1e-5


def test_rows_keep_their_order_when_not_sorted(encoder: Encoder):
    rows = _rows([9, 3, 40, 3, 9])
    expected = np.concatenate([_encode(encoder, [row]) for row in rows])
    assert np.abs(_encode(encoder, rows) - expected).max() <= 1e-5


def test_a_batch_larger_than_one_forward_is_computed_in_parts(encoder: Encoder):
    rows = _rows([300] * 20)
    expected = np.concatenate([_encode(encoder, [row]) for row in rows])
    assert np.abs(_encode(encoder, rows) - expected).max() <= 1e-5


def test_bf16_stays_close(minilm: Path):
    rows = _rows([4, 16, 16, 60, 200])
    found = _encode(load(minilm, ModelSpec(384, 512, "mean", "bf16")), rows)
    assert found.dtype == np.float32
    assert _cosines(found, _reference(minilm, rows)).min() >= 0.999


def test_auto_chooses_an_element_type_that_it_names(minilm: Path):
    assert load(minilm, ModelSpec(384, 512, "mean", "auto")).element_type in ("f32", "bf16")


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize(
    ("config_class", "changes", "packs"),
    [
        ("BertConfig", {}, True),
        ("RobertaConfig", {}, True),
        ("XLMRobertaConfig", {}, True),
        ("DistilBertConfig", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64}, True),
        ("ModernBertConfig", {"local_attention": 32}, True),
        ("Qwen2Config", {"num_key_value_heads": 2}, True),
        ("MPNetConfig", {}, False),
    ],
)
def test_other_architectures_equal_transformers(
    tiny, config_class: str, changes: dict[str, object], packs: bool, pooling: Pooling
):
    if config_class == "DistilBertConfig":
        changes = changes | {"hidden_size": 32}
    folder = tiny(config_class, **changes)
    encoder = load(folder, ModelSpec(32, 200, pooling, "f32"))
    rows = _rows([1, 3, 3, 17, 90, 200], vocabulary=500)
    found, expected = _encode(encoder, rows), _reference(folder, rows, pooling)
    assert encoder.packs is packs
    assert _cosines(found, expected).min() >= 0.99999
    assert np.abs(found - expected).max() <= 1e-4 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize(
    ("token_ids", "lengths", "says"),
    [
        ([30_522], [1], "vocabulary has ids from 0 to 30521"),
        ([-1], [1], "vocabulary has ids"),
        ([5] * 513, [513], "a row has 513 tokens, the profile allows 512"),
        ([5], [2], "add up to 2"),
    ],
)
def test_a_batch_that_does_not_fit_the_model_is_refused(
    encoder: Encoder, token_ids: list[int], lengths: list[int], says: str
):
    with pytest.raises(BatchError, match=says):
        encoder.forward(np.array(token_ids, np.int32), np.array(lengths, np.int32))


@pytest.mark.parametrize("element_type", ["f32", "bf16"])
def test_memory_follows_the_element_type(minilm: Path, element_type: ElementChoice):
    parameters = 22_565_376  # MiniLM-L6 without its pooler
    size = {"f32": 4, "bf16": 2}[element_type]
    found = load(minilm, ModelSpec(384, 512, "mean", element_type)).memory_bytes
    assert parameters * size <= found <= parameters * size * 1.01
