"""Items that fail in a call that goes well."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from tests.unit.sdk.fake_mesh import DIMENSIONS, FakeMesh


@pytest.mark.parametrize("padding", [0, 200])
async def test_encode_raises_and_keeps_the_others(fake: FakeMesh, padding: int) -> None:
    texts = ["1", "", "3", "", *["5"] * padding]
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.ItemsFailed) as e:
            await mesh.encode(texts)
    failed = e.value
    assert sorted(failed.errors) == [1, 3]
    assert failed.errors[1].reason == "ITEM_EMPTY"
    assert failed.errors[1].code == "INVALID_ARGUMENT"
    assert failed.vectors.shape == (len(texts), DIMENSIONS)
    assert np.isnan(failed.vectors[[1, 3]]).all()
    assert failed.vectors[[0, 2], 0].tolist() == [1, 3]
    assert not isinstance(failed, shoal.CallError)
    assert f"2 of {len(texts)} items failed: texts[1]: ITEM_EMPTY: the text has no token of its own" in str(failed)


async def test_integer_rows_of_failed_items_are_zero(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.ItemsFailed) as e:
            await mesh.encode(["1", ""], type="int8")
    assert e.value.vectors[1].any() == False  # noqa: E712


async def test_all_failed_and_the_message_stays_short(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.ItemsFailed, match=r"and 97 more$") as e:
            await mesh.encode([""] * 100)
        with pytest.raises(shoal.ItemsFailed, match="1 of 1"):
            await mesh.encode("")
    assert len(e.value.vectors) == 100


async def test_encode_items_gives_both_kinds(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        answer = await mesh.encode_items(["1", ""], ids=["a", "b"])
    kinds = [type(result) for result in answer.results]
    assert kinds == [shoal.Embedding, shoal.ItemError]
    assert answer.results[1].id == "b"
    assert list(answer.errors) == [1]
