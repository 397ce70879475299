"""Cutting a request's items into units: pure."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from shoal_common import limits
from shoal_common.blobs import Data

BYTES_PER_TOKEN = 4


class Run(NamedTuple):
    """Neighbouring items of a request that travel as one unit."""

    first_index: int
    items: Sequence[Data]
    estimated_tokens: int
    is_blob: bool = False
    """Whether it is one item that lies in object storage."""


def cut(
    items: Sequence[Data], left_out: Container[int], max_tokens: int, blob_bytes: int = limits.ITEM_BYTES
) -> list[Run]:
    """Runs that hold every item but those `left_out`, in order.

    A run holds at least one item and closes with the item that brings it to UNIT_ITEMS items or
    UNIT_BYTES bytes, or before one that is left out. An item of more than `blob_bytes` is a run of its own: if it
    cannot be kept, its neighbours are none the worse. `max_tokens` is the most that an item can cost.
    """
    runs: list[Run] = []
    first = size = tokens = 0
    for index, item in enumerate(items):
        is_blob = len(item) > blob_bytes
        if is_blob or index in left_out:
            if index > first:
                runs.append(Run(first, items[first:index], tokens))
            if index not in left_out:
                runs.append(Run(index, [item], min(len(item) // BYTES_PER_TOKEN, max_tokens), is_blob=True))
            first, size, tokens = index + 1, 0, 0
            continue
        size += len(item)
        tokens += min(len(item) // BYTES_PER_TOKEN, max_tokens)
        if size >= limits.UNIT_BYTES or index + 1 - first >= limits.UNIT_ITEMS:
            runs.append(Run(first, items[first : index + 1], tokens))
            first, size, tokens = index + 1, 0, 0
    if first < len(items):
        runs.append(Run(first, items[first:], tokens))
    return runs
