"""Cutting: every item in exactly one run, in order, within a unit's bounds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal_common import limits
from shoal_gateway.units import cut

sizes = st.lists(st.sampled_from([0, 1, 7, 500, 4000, limits.UNIT_BYTES - 1, limits.UNIT_BYTES, 70_000]), max_size=80)


def test_one_text_is_one_unit() -> None:
    (run,) = cut([b"x" * 40], (), 256)
    assert (run.first_index, list(run.items), run.estimated_tokens) == (0, [b"x" * 40], 10)


def test_a_unit_closes_at_32_items() -> None:
    assert [len(run.items) for run in cut([b"x"] * 64, (), 256)] == [32, 32]
    assert [len(run.items) for run in cut([b"x"] * 65, (), 256)] == [32, 32, 1]


def test_a_unit_closes_with_the_item_that_fills_it() -> None:
    half = b"x" * (limits.UNIT_BYTES // 2)
    assert [len(run.items) for run in cut([half] * 5, (), 256)] == [2, 2, 1]
    just_under = b"x" * (limits.UNIT_BYTES - 1)
    largest = b"x" * limits.ITEM_BYTES
    (run,) = cut([just_under, largest], (), 256)
    assert sum(map(len, run.items)) < limits.NATS_PAYLOAD_BYTES


def test_an_item_costs_at_most_the_models_tokens() -> None:
    (run,) = cut([b"x" * 4000, b"x" * 40], (), 256)
    assert run.estimated_tokens == 256 + 10


def test_no_items() -> None:
    assert cut([], (), 256) == []
    assert cut([b"a", b"b"], {0, 1}, 256) == []


def test_a_blob_is_a_unit_of_its_own() -> None:
    large = b"x" * (limits.BLOB_ITEM_BYTES + 1)
    runs = cut([b"a", b"b", large, large, b"c", large], {3}, 256, limits.BLOB_ITEM_BYTES)
    assert [(run.first_index, len(run.items), run.is_blob) for run in runs] == [
        (0, 2, False),
        (2, 1, True),
        (4, 1, False),
        (5, 1, True),
    ]
    assert runs[1].items[0] is large and runs[1].estimated_tokens == 256
    assert not any(run.is_blob for run in cut([large[:-1]], (), 256, limits.BLOB_ITEM_BYTES))
    assert not any(run.is_blob for run in cut([large], (), 256)), "without object storage it travels as it is"


@given(sizes, st.sets(st.integers(0, 79)), st.sampled_from([4000, limits.UNIT_BYTES, limits.ITEM_BYTES]))
def test_runs_cover_the_items(lengths: list[int], left_out: set[int], blob_bytes: int) -> None:
    items = [bytes([index]) * length for index, length in enumerate(lengths)]
    runs = cut(items, left_out, 256, blob_bytes)
    covered = [(run.first_index + n, item) for run in runs for n, item in enumerate(run.items)]
    assert covered == [(index, item) for index, item in enumerate(items) if index not in left_out]
    for run in runs:
        assert 1 <= len(run.items) <= limits.UNIT_ITEMS
        assert sum(map(len, run.items[:-1])) < limits.UNIT_BYTES
        assert run.is_blob == any(len(item) > blob_bytes for item in run.items)
        assert len(run.items) == 1 or not run.is_blob
        assert run.estimated_tokens == sum(min(len(item) // 4, 256) for item in run.items)
    for before, after in pairwise(runs):
        full = len(before.items) == limits.UNIT_ITEMS or sum(map(len, before.items)) >= limits.UNIT_BYTES
        full = full or before.is_blob or after.is_blob
        assert full or before.first_index + len(before.items) in left_out, "a run closes only for a reason"
        assert after.first_index >= before.first_index + len(before.items)
