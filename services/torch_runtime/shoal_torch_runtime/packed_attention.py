"""Attention over packed rows, as a function of transformers' own attention interface.

A model loaded with `attn_implementation=NAME` is called with input_ids and position_ids of shape (1, tokens) and no
mask; transformers builds no mask for an implementation it has no mask function for. Every layer then calls
`packed_attention`, which runs scaled dot product attention once for each run of rows of equal length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from shoal_torch_runtime.packed_batch import Run

NAME = "shoal_packed"

# Not a keyword argument of the model's forward: some architectures do not hand those on to their attention.
_runs: ContextVar[tuple[Run, ...]] = ContextVar("runs of the batch that this thread computes")

# Arguments of attention functions that change values in a way packed_attention does not reproduce.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


class UnsupportedAttention(Exception):
    """The model's attention needs something that the packed function does not do."""


@contextmanager
def rows_of(runs: tuple[Run, ...]) -> Iterator[None]:
    """Tells attention, on this thread, which rows the packed tokens belong to."""
    token = _runs.set(runs)
    try:
        yield
    finally:
        _runs.reset(token)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention in which each row sees itself alone.

    Args:
        query: Shape (1, heads, tokens, head size); key and value alike, with fewer heads where queries share them.
        sliding_window: Tokens further than this from each other, itself counted, do not see each other.

    Returns:
        Shape (1, tokens, heads, head size), and no weights, as the interface asks.

    Raises:
        UnsupportedAttention: a mask, or an argument that changes values in a way this function does not know.
    """
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if attention_mask is not None or unsupported:
        raise UnsupportedAttention(", ".join(unsupported) or "attention_mask")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for run in _runs.get():
        mask = _window_mask(run.length, sliding_window, causal, query.device)
        output = scaled_dot_product_attention(
            _rows(query, run),
            _rows(key, run),
            _rows(value, run),
            attn_mask=mask,
            is_causal=causal and mask is None and run.length > 1,
            scale=scaling,
            enable_gqa=grouped,
        )
        outputs.append(output.transpose(1, 2).reshape(1, run.rows * run.length, query.shape[1], value.shape[-1]))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def _rows(states: torch.Tensor, run: Run) -> torch.Tensor:
    """A view (rows, heads, length, head size) of states (1, heads, tokens, head size)."""
    return states[0, :, run.start : run.end].unflatten(1, (run.rows, run.length)).transpose(0, 1)


def _window_mask(length: int, window: int | None, causal: bool, device: torch.device) -> torch.Tensor | None:
    """True where a token may see another, shape (length, length); None where the window holds the whole row."""
    if window is None or length <= window:
        return None
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & (distance < window) if causal else distance.abs() < window


AttentionInterface.register(NAME, packed_attention)
