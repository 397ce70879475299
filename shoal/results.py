"""What an encode call gives back: an outcome for each item, and where they came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from shoal import statuses
from shoal.chunks import Chunk
from shoal.errors import InternalError
from shoal.tensors import Array, dtype_of, row_length, to_array
from shoal.v1 import inference_pb2


@dataclass(frozen=True, eq=False)
class Embedding:
    """One text's vector: shape (d,), or (ceil(d/8),) uint8 for binary. It may be read-only."""

    index: int
    """Place of the text in the call."""
    id: str
    """The caller's name for it; empty if none was given."""
    vector: Array
    input_tokens: int
    """Tokens of prompt and text with special tokens, before truncation."""
    used_tokens: int
    """Tokens that the model saw."""
    truncated: bool
    input_tokens_lower_bound: bool
    """A long text was tokenized only as far as it matters: input_tokens says "at least"."""


@dataclass(frozen=True)
class ItemError:
    """Why one text has no vector. It is a result, not an exception."""

    index: int
    id: str
    code: str
    """A gRPC status code's name, for instance "INVALID_ARGUMENT"."""
    reason: str
    """A stable name of the cause, for instance "ITEM_EMPTY"."""
    message: str
    input_tokens: int = 0

    def __str__(self) -> str:
        return f"{self.reason or self.code}: {self.message}" if self.message else self.reason or self.code


Outcome: TypeAlias = Embedding | ItemError


@dataclass(frozen=True)
class Run:
    """The run of items that travelled together: `count` of them, from `first_index` of the call on."""

    first_index: int
    count: int
    worker: str
    attempt: int
    """1 for the first try."""
    queue_ms: float
    compute_ms: float


@dataclass(frozen=True)
class Provenance:
    """What computed an answer."""

    model: str
    """The model's name, aliases resolved."""
    revision: str
    """Digest of its profile."""
    adapter: str
    """name@version; empty without one."""
    adapter_digest: str
    runtime: str
    device: str
    runs: tuple[Run, ...] = ()
    """In order of first_index."""


@dataclass(frozen=True)
class EncodeAnswer:
    """The outcomes of an encode call, in the order of its texts."""

    results: list[Outcome]
    provenance: list[Provenance]
    """One for each distinct origin: more than one if several devices or revisions had a share."""

    @property
    def errors(self) -> dict[int, ItemError]:
        """The failed items by index."""
        return {result.index: result for result in self.results if isinstance(result, ItemError)}

    def vectors(self, element_type: str, dimensions: int = 0) -> Array:
        """All vectors as one array, shape (n, d), or (n, ceil(d/8)) for "binary".

        `element_type` is the one that was asked for. Failed rows are NaN for floats, else 0.
        `dimensions` is d if there is no vector to tell it.
        """
        good = [result for result in self.results if isinstance(result, Embedding)]
        width = len(good[0].vector) if good else row_length(element_type, dimensions)
        dtype = dtype_of(element_type)
        rows = np.full((len(self.results), width), np.nan if dtype.kind == "f" else 0, dtype)
        for result in good:
            rows[result.index] = result.vector
        return rows


def outcomes(chunk: Chunk, response: inference_pb2.EncodeResponse) -> list[Outcome]:
    """A chunk's outcomes, indexed by the whole call.

    Raises InternalError if the response doesn't fit the chunk.
    """
    if len(response.results) != len(chunk.texts):
        raise _broken(f"the mesh answered {len(response.results)} items of {len(chunk.texts)}")
    return [_outcome(chunk.first_index + place, result) for place, result in enumerate(response.results)]


def provenance(chunk: Chunk, response: inference_pb2.EncodeResponse) -> Provenance:
    """A chunk's provenance, its runs indexed by the whole call."""
    sent = response.provenance
    return Provenance(
        model=sent.model,
        revision=sent.revision,
        adapter=sent.adapter,
        adapter_digest=sent.adapter_digest,
        runtime=sent.runtime,
        device=sent.device,
        runs=tuple(
            Run(
                first_index=chunk.first_index + run.first_index,
                count=run.count,
                worker=run.worker,
                attempt=run.attempt,
                queue_ms=run.queue_ms,
                compute_ms=run.compute_ms,
            )
            for run in sent.runs
        ),
    )


def merged(parts: Iterable[Provenance]) -> list[Provenance]:
    """The distinct origins, each with all its runs."""
    runs: dict[Provenance, list[Run]] = {}
    for part in parts:
        runs.setdefault(replace(part, runs=()), []).extend(part.runs)
    return [replace(origin, runs=tuple(sorted(held, key=lambda run: run.first_index))) for origin, held in runs.items()]


def _outcome(index: int, result: inference_pb2.EncodeResult) -> Outcome:
    if result.status.code:
        return ItemError(
            index=index,
            id=result.id,
            code=statuses.code_name(result.status.code),
            reason=result.status.reason,
            message=result.status.message,
            input_tokens=result.input_tokens,
        )
    try:
        vector = to_array(result.dense)
    except ValueError as error:
        raise _broken(str(error)) from None
    return Embedding(
        index=index,
        id=result.id,
        vector=vector,
        input_tokens=result.input_tokens,
        used_tokens=result.used_tokens,
        truncated=result.truncated,
        input_tokens_lower_bound=result.input_tokens_lower_bound,
    )


def _broken(message: str) -> InternalError:
    return InternalError(message, code="INTERNAL", reason="RESPONSE_MALFORMED")
