"""LoRA in packed batches: rows of different adapters of one base, and rows without one, in one forward.

    adapted = Adapted(model)
    with adapted.rows_of([(adapter, first_token, end_token), ...]):
        adapted.model(...)

Rows of one adapter stand one after the other. The base's own matrices are multiplied once for all rows; then each
adapter's low-rank product is added to its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel


class Matrices(NamedTuple):
    """What an adapter adds to a linear layer: up(down(x))."""

    down: torch.Tensor
    """Shape (rank, inputs)."""
    up: torch.Tensor
    """Shape (outputs, rank), the scaling included."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA on a device, in the base's element type."""

    digest: str
    modules: Mapping[str, Matrices]
    """By the dotted name of the base's module."""

    @property
    def memory_bytes(self) -> int:
        """Memory of its matrices."""
        return sum(one.nbytes for matrices in self.modules.values() for one in matrices)


class Rows(NamedTuple):
    """Tokens of a packed batch that belong to one adapter."""

    adapter: Adapter
    first: int
    end: int


@dataclass(slots=True)
class _Batch:
    rows: Sequence[Rows]
    shared: dict[int, _Downs] = field(default_factory=dict)
    """Products of an input with the matrices of all layers that read it, by the identity of those layers' group."""


class _Downs(NamedTuple):
    given: torch.Tensor
    products: Sequence[Mapping[str, torch.Tensor]]
    """By module, for each of the batch's rows."""


_batch: ContextVar[_Batch] = ContextVar("adapters of the batch that this thread computes")


class Adapted:
    """A twin of a model, with the same weights in memory, whose linear layers add what adapters say.

    The model itself is left as it is: a batch without adapters runs on it, as if there were none.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, shared)
        for name, module in list(self.model.named_modules()):
            if isinstance(module, torch.nn.Linear):
                parent, _, child = name.rpartition(".")
                setattr(self.model.get_submodule(parent), child, _AdaptedLinear(name, module))
        for siblings in _siblings(self.model):
            for one in siblings:
                one.siblings = siblings

    @contextmanager
    def rows_of(self, rows: Sequence[Rows]) -> Iterator[None]:
        """Tells the layers, on this thread, which tokens of the batch belong to which adapter; the others have none."""
        token = _batch.set(_Batch(rows))
        try:
            yield
        finally:
            _batch.reset(token)


class _AdaptedLinear(torch.nn.Module):
    """A linear layer with what the batch's adapters add to it."""

    def __init__(self, name: str, base: torch.nn.Linear) -> None:
        super().__init__()
        self.name = name
        self.weight, self.bias = base.weight, base.bias
        self.siblings: Sequence[_AdaptedLinear] = (self,)
        """The layers that read the same input, itself among them."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Shape (1, tokens, inputs) to (1, tokens, outputs)."""
        output = linear(given, self.weight, self.bias)
        batch = _batch.get()
        downs = self._downs(batch, given)
        for rows, products in zip(batch.rows, downs.products, strict=True):
            product = products.get(self.name)
            if product is not None:
                output[0, rows.first : rows.end].addmm_(product, rows.adapter.modules[self.name].up.T)
        return output

    def _downs(self, batch: _Batch, given: torch.Tensor) -> _Downs:
        """One product of the input for all layers that read it."""
        group = id(self.siblings)
        downs = batch.shared.get(group)
        if downs is None or downs.given is not given:
            names = [one.name for one in self.siblings]
            products = [_products(rows.adapter, names, given[0, rows.first : rows.end]) for rows in batch.rows]
            downs = batch.shared[group] = _Downs(given, products)
        return downs


def _products(adapter: Adapter, names: Sequence[str], given: torch.Tensor) -> Mapping[str, torch.Tensor]:
    names = [name for name in names if name in adapter.modules]
    if len(names) < 2:
        return {name: given @ adapter.modules[name].down.T for name in names}
    ranks = [adapter.modules[name].down.shape[0] for name in names]
    together = given @ torch.cat([adapter.modules[name].down for name in names]).T
    return dict(zip(names, together.split(ranks, dim=1), strict=True))


def _siblings(model: torch.nn.Module) -> Iterator[Sequence[_AdaptedLinear]]:
    """Layers of one parent with inputs of one size: those of attention's query, key and value, for instance."""
    for parent in model.modules():
        by_inputs: dict[int, list[_AdaptedLinear]] = {}
        for child in parent.children():
            if isinstance(child, _AdaptedLinear):
                by_inputs.setdefault(child.weight.shape[1], []).append(child)
        yield from (tuple(group) for group in by_inputs.values())
