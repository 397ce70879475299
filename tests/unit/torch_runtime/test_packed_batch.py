"""Reading and cutting packed batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_torch_runtime.errors import BatchError
from shoal_torch_runtime.packed_batch import PackedBatch, Run


def _batch(*lengths: int) -> PackedBatch:
    return PackedBatch(np.arange(sum(lengths), dtype=np.int32), np.array(lengths, np.int32))


def test_neighbours_of_equal_length_are_one_run():
    assert _batch(2, 2, 3, 2).runs == (Run(0, 2, 2), Run(4, 1, 3), Run(7, 1, 2))


def test_positions_start_again_in_each_row():
    assert _batch(2, 1, 3).positions.tolist() == [0, 1, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("token_ids", "lengths", "says"),
    [
        (b"\0\0\0", b"\1\0\0\0", "whole 32-bit"),
        (b"", b"", "at least one row"),
        (bytes(8), b"\2\0\0\0\0\0\0\0", "at least one token"),
        (bytes(8), b"\3\0\0\0", "add up to 3 tokens, token_ids has 2"),
        (bytes(4), b"\xff\xff\xff\x7f\xff\xff\xff\x7f\3\0\0\0", "add up to 4294967297"),
    ],
)
def test_bytes_that_are_no_batch_are_refused(token_ids: bytes, lengths: bytes, says: str):
    with pytest.raises(BatchError, match=says):
        PackedBatch.parse(token_ids, lengths)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_cutting_keeps_every_row_and_the_bound(lengths: list[int], tokens: int):
    batch = _batch(*lengths)
    parts = batch.cut(tokens)
    assert np.concatenate([part.lengths for part in parts]).tolist() == lengths
    assert np.concatenate([part.token_ids for part in parts]).tolist() == batch.token_ids.tolist()
    assert all(part.rows == 1 or part.rows * part.lengths.max() <= tokens for part in parts)
