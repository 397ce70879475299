"""An encoder: a loaded model that turns packed rows of tokens into pooled vectors. Knows no gRPC and no threads.

spec = ModelSpec.parse(profile_json)
encoder = load(Path(folder), spec)
vectors = encoder.forward(token_ids, lengths)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from shoal_torch_runtime import packed_attention, pooling
from shoal_torch_runtime.architecture import positions, read_config, takes_position_ids
from shoal_torch_runtime.errors import BatchError, LoadError
from shoal_torch_runtime.forward import Forward, PackedForward, PaddedForward
from shoal_torch_runtime.model_spec import ModelSpec
from shoal_torch_runtime.packed_attention import UnsupportedAttention
from shoal_torch_runtime.packed_batch import PackedBatch
from shoal_torch_runtime.probe import agree, probe_batch
from shoal_torch_runtime.weights import read_model

ElementType = Literal["f32", "bf16"]

_DTYPES: dict[ElementType, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16}
_BF16_GAIN = 1.15
"""How many times faster bf16 must be to be worth its rounding."""
_PART_TOKENS = {"cpu": 4_096, "cuda": 131_072}
"""Tokens of one forward. On CPUs larger ones fall out of the cache: 32k tokens at once are 25 % slower than 4k."""
_TIMED_LENGTHS = (8, 16, 16, 32, 32, 64, 64, 128)
_TIMED_ROUNDS = 5
_WARM_UP_LENGTHS = ((1,), (8,) * 8, (16, 17, 40), (128,))


@dataclass(frozen=True)
class Encoder:
    """A model on a device. `forward` may be called by several threads at once."""

    element_type: ElementType
    spec: ModelSpec
    packs: bool
    """False where the model is run padded, because its architecture cannot pack."""
    _model: PreTrainedModel
    _hidden: Forward

    @property
    def memory_bytes(self) -> int:
        """Memory of weights and buffers."""
        return self._model.get_memory_footprint()

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return _vocabulary(self._model)

    def forward(self, token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Encodes rows of tokens that stand one after the other.

        Args:
            token_ids: int32, shape (tokens,).
            lengths: int32, shape (rows,); fastest when sorted. They add up to the tokens.

        Returns:
            float32, C order, shape (rows, dimensions): pooled, not normalised, in the order of `lengths`.

        Raises:
            BatchError: lengths that do not add up, ids outside the vocabulary, or a row that is too long.
        """
        batch = PackedBatch(token_ids, lengths)
        batch.check_lengths()
        return self.encode(batch)

    def encode(self, batch: PackedBatch) -> np.ndarray:
        """As `forward`, for a batch whose lengths are checked."""
        self._check(batch)
        with torch.inference_mode():
            parts = [
                pooling.pool(self._hidden(part), part, self.spec.pooling)
                for part in batch.cut(_PART_TOKENS[self._model.device.type])
            ]
            return torch.cat(parts).cpu().numpy()

    def warm_up(self) -> None:
        """Runs a few shapes, so that the calling thread's first batch finds its buffers and thread pool ready."""
        for lengths in _WARM_UP_LENGTHS:
            self.encode(probe_batch(self.vocabulary, self.spec.max_tokens, None, lengths))

    def _check(self, batch: PackedBatch) -> None:
        longest = int(batch.lengths.max())
        if longest > self.spec.max_tokens:
            raise BatchError(f"lengths: a row has {longest} tokens, the profile allows {self.spec.max_tokens}")
        low, high = int(batch.token_ids.min()), int(batch.token_ids.max())
        if low < 0 or high >= self.vocabulary:
            raise BatchError(f"token_ids: from {low} to {high}, the vocabulary has ids from 0 to {self.vocabulary - 1}")


def load(folder: Path, spec: ModelSpec, device: str = "cpu") -> Encoder:
    """Loads a model, and chooses the element type where the profile leaves it open.

    Call it on a thread that serves, or with one torch thread: OpenMP keeps a pool of threads per calling thread.

    Raises:
        LoadError: what is wrong, naming the file or the profile's field.
    """
    config = read_config(folder)
    if spec.element_type != "auto":
        return _load_as(folder, config, spec, device, spec.element_type)
    plain = _load_as(folder, config, spec, device, "f32")
    rounded = _load_as(folder, config, spec, device, "bf16")
    return rounded if _seconds(plain) > _BF16_GAIN * _seconds(rounded) else plain


def _load_as(
    folder: Path, config: PreTrainedConfig, spec: ModelSpec, device: str, element_type: ElementType
) -> Encoder:
    _check_dimensions(config, spec)
    model = read_model(folder, config, _DTYPES[element_type], device)
    _check_positions(model, spec)
    packed = PackedForward(model)
    packs = takes_position_ids(model) and _packs(model, packed, spec)
    hidden: Forward = packed if packs else PaddedForward(model)
    return Encoder(element_type, spec, packs, model, hidden)


def _check_dimensions(config: PreTrainedConfig, spec: ModelSpec) -> None:
    if config.hidden_size != spec.dimensions:
        raise LoadError(
            f"encode.dimensions: profile says dimensions {spec.dimensions}, the model has {config.hidden_size}"
        )


def _check_positions(model: PreTrainedModel, spec: ModelSpec) -> None:
    bound = positions(model)
    if bound is not None and spec.max_tokens > bound:
        raise LoadError(f"encode.max_tokens: profile says {spec.max_tokens}, the model has {bound} positions")


def _vocabulary(model: PreTrainedModel) -> int:
    return cast(torch.nn.Embedding, model.get_input_embeddings()).weight.shape[0]


def _packs(model: PreTrainedModel, packed: PackedForward, spec: ModelSpec) -> bool:
    """Tries whether packing changes values. Leaves the model with the attention that it is to be run with."""
    batch = probe_batch(_vocabulary(model), spec.max_tokens, getattr(model.config, "pad_token_id", None))
    own = model.config._attn_implementation or "eager"
    with torch.inference_mode():
        expected = PaddedForward(model)(batch)
        model.set_attn_implementation(packed_attention.NAME)
        try:
            # Architectures off the interface keep their own attention, which says so by not agreeing.
            if agree(packed(batch), expected):
                return True
        except UnsupportedAttention:
            pass
    model.set_attn_implementation(own)
    return False


def _seconds(encoder: Encoder) -> float:
    """Shortest time of a mixed batch, of a few."""
    batch = probe_batch(encoder.vocabulary, encoder.spec.max_tokens, None, _TIMED_LENGTHS)
    encoder.encode(batch)
    times = []
    for _ in range(_TIMED_ROUNDS):
        began = time.perf_counter()
        encoder.encode(batch)
        times.append(time.perf_counter() - began)
    return min(times)
