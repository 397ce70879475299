"""The batch that a model is tried on when it is loaded."""

from __future__ import annotations

import numpy as np
import torch

from shoal_torch_runtime.packed_batch import PackedBatch

_LENGTHS = (1, 3, 3, 17, 72)
"""One and several rows a run, a lone token, and a row longer than the local windows of ModernBERT and its kin."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def probe_batch(vocabulary: int, longest: int, avoid: int | None, lengths: tuple[int, ...] = _LENGTHS) -> PackedBatch:
    """Random tokens, the same for every call, in rows of the given lengths cut to `longest`.

    Args:
        avoid: A token id that does not occur: RoBERTa's own forward takes its padding id for padding anywhere.
    """
    clipped = np.minimum(np.array(lengths, np.int32), longest)
    token_ids = np.random.default_rng(0).integers(0, vocabulary, clipped.sum(), dtype=np.int32)
    if avoid is not None:
        token_ids[token_ids == avoid] = (avoid + 1) % vocabulary
    return PackedBatch(token_ids, clipped)


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether hidden states (tokens, hidden size) are the same: each token's error against its state's length."""
    error = (found.float() - expected.float()).norm(dim=1)
    return bool((error <= _TOLERANCE[expected.dtype] * expected.float().norm(dim=1)).all())
