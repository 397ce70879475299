"""Pooling: from hidden states of packed tokens to one vector a row, in float32."""

from __future__ import annotations

import torch

from shoal_torch_runtime.model_spec import Pooling
from shoal_torch_runtime.packed_batch import PackedBatch


def pool(hidden: torch.Tensor, batch: PackedBatch, pooling: Pooling) -> torch.Tensor:
    """Pools hidden states of shape (tokens, dimensions), of any element type.

    Returns:
        float32 of shape (rows, dimensions), in the batch's order: each row's mean, first or last token.
    """
    if pooling == "mean":
        return _means(hidden, batch)
    at = batch.starts if pooling == "cls" else batch.starts + batch.lengths - 1
    return hidden[torch.from_numpy(at).to(hidden.device)].float()


def _means(hidden: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    rows = [
        hidden[run.start : run.end].unflatten(0, (run.rows, run.length)).mean(1, dtype=torch.float32)
        for run in batch.runs
    ]
    return rows[0] if len(rows) == 1 else torch.cat(rows)
