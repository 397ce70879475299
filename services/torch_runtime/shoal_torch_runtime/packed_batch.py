"""A batch as it is computed: rows of tokens one after the other, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from shoal_torch_runtime.errors import BatchError


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring rows of equal length: a view (rows, length) over the batch's tokens."""

    start: int
    """First token."""
    rows: int
    length: int

    @property
    def end(self) -> int:
        """Token after the last."""
        return self.start + self.rows * self.length


@dataclass(frozen=True)
class PackedBatch:
    """Token ids of shape (tokens,) and lengths of shape (rows,), both int32."""

    token_ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def parse(cls, token_ids: bytes, lengths: bytes) -> PackedBatch:
        """Reads little-endian int32.

        Raises:
            BatchError: bytes that are not whole int32, no rows, empty rows, or lengths that do not add up.
        """
        if len(token_ids) % 4 or len(lengths) % 4:
            raise BatchError("token_ids and lengths must be whole 32-bit integers")
        batch = cls(np.frombuffer(token_ids, "<i4"), np.frombuffer(lengths, "<i4"))
        batch.check_lengths()
        return batch

    def check_lengths(self) -> None:
        """Raises BatchError unless there are rows, each has a token, and together they have all tokens."""
        if not len(self.lengths):
            raise BatchError("lengths: a batch has at least one row")
        if self.lengths.min() < 1:
            raise BatchError("lengths: a row has at least one token")
        total = int(self.lengths.sum(dtype=np.int64))
        if total != len(self.token_ids):
            raise BatchError(f"lengths add up to {total} tokens, token_ids has {len(self.token_ids)}")

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.lengths)

    @cached_property
    def starts(self) -> np.ndarray:
        """First token of each row, shape (rows,), int64."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @cached_property
    def positions(self) -> np.ndarray:
        """Position of each token in its row, from 0, shape (tokens,), int64."""
        return np.arange(len(self.token_ids), dtype=np.int64) - np.repeat(self.starts, self.lengths)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The rows as runs of equal length, in order; few when rows are sorted by length."""
        firsts = np.flatnonzero(np.diff(self.lengths, prepend=-1))
        counts = np.diff(firsts, append=self.rows)
        return tuple(
            Run(int(self.starts[first]), int(count), int(self.lengths[first]))
            for first, count in zip(firsts, counts, strict=True)
        )

    def row(self, index: int) -> np.ndarray:
        """Token ids of one row."""
        start = self.starts[index]
        return self.token_ids[start : start + self.lengths[index]]

    def cut(self, tokens: int) -> list[PackedBatch]:
        """Cuts between rows, into batches of at most `tokens` tokens once padded to their longest row, or one row."""
        cuts, longest = [0], 0
        for row, length in enumerate(self.lengths.tolist()):
            longest = max(longest, length)
            if row > cuts[-1] and longest * (row + 1 - cuts[-1]) > tokens:
                cuts.append(row)
                longest = length
        return [self._part(first, last) for first, last in pairwise([*cuts, self.rows])]

    def _part(self, first: int, last: int) -> PackedBatch:
        end = self.starts[last] if last < self.rows else len(self.token_ids)
        return PackedBatch(self.token_ids[self.starts[first] : end], self.lengths[first:last])
