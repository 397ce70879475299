"""The two ways a transformers model turns a packed batch into hidden states: packed, or padded where it cannot pack."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from shoal_torch_runtime import packed_attention
from shoal_torch_runtime.architecture import first_position
from shoal_torch_runtime.packed_batch import PackedBatch


class Forward(Protocol):
    """Hidden states of a batch."""

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """Returns the last hidden states, shape (tokens, hidden size), in the batch's order."""
        ...


class PackedForward:
    """All rows in one call, nothing padded. The model's attention must be `packed_attention`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._first_position = first_position(model)

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """Returns the last hidden states, shape (tokens, hidden size)."""
        device = self._model.device
        token_ids = torch.from_numpy(batch.token_ids.astype(np.int64)).to(device)
        position_ids = torch.from_numpy(batch.positions + self._first_position).to(device)
        with packed_attention.rows_of(batch.runs):
            output = self._model(input_ids=token_ids[None], position_ids=position_ids[None])
        return output.last_hidden_state[0]


class PaddedForward:
    """All rows padded to the longest, under an attention mask of transformers' own."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._pad_id = getattr(model.config, "pad_token_id", None) or 0

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """Returns the last hidden states, shape (tokens, hidden size), padding left out."""
        present = np.arange(batch.lengths.max()) < batch.lengths[:, None]
        token_ids = np.full(present.shape, self._pad_id, np.int64)
        token_ids[present] = batch.token_ids
        mask = torch.from_numpy(present).to(self._model.device)
        output = self._model(input_ids=torch.from_numpy(token_ids).to(mask.device), attention_mask=mask.long())
        return output.last_hidden_state[mask]
