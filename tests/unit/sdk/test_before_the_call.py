"""What the client refuses without asking anyone."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from shoal.chunks import CHUNK_BYTES, CHUNK_ITEMS, TEXT_BYTES_SENT, cut
from tests.unit.sdk.fake_mesh import FakeMesh


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("type", "f64", "type is 'f64'; it is one of 'f32', 'f16', 'bf16', 'int8', 'binary'"),
        ("type", None, "it is one of 'f32'"),
        ("role", "passage", "it is one of 'query', 'document'"),
        ("truncation", "start", "it is one of 'end', 'error'"),
        ("priority", "urgent", "it is one of 'interactive', 'bulk'"),
        ("dimensions", 0, "at least 1"),
        ("dimensions", 2**32, "below 2"),
        ("max_tokens", -1, "at least 1"),
        ("timeout", 0, "above 0"),
        ("timeout", float("nan"), "above 0"),
        ("model", "", "model is empty"),
        ("model", "a\ud800", "not valid Unicode"),
    ],
)
async def test_bad_values(fake: FakeMesh, keyword: str, value: object, message: str) -> None:
    options: Any = {keyword: value}
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(ValueError, match=message):
            await mesh.encode(["x"], **options)
        with pytest.raises(ValueError, match=message):
            mesh.encode_stream(["x"], **options)
    assert fake.heard == []


@pytest.mark.parametrize(
    "options", [{"dimension": 3}, {"dimensions": "3"}, {"dimensions": True}, {"normalize": 1}, {"model": 3}]
)
async def test_bad_types(fake: FakeMesh, options: Any) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(TypeError, match=next(iter(options))):
            await mesh.encode(["x"], **options)
    assert fake.heard == []


@pytest.mark.parametrize("before", [0, 1, 3000])
async def test_a_lone_surrogate_is_named(fake: FakeMesh, before: int) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(
            shoal.InvalidText, match=rf"texts\[{before}\] has a lone surrogate .*ud83d.* at character 2"
        ) as e:
            await mesh.encode([*["x"] * before, "ab\ud83d"])
    assert e.value.index == before
    assert isinstance(e.value, ValueError)
    assert fake.heard == []


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", ["nested"]])
async def test_what_is_no_text_is_named(fake: FakeMesh, wrong: Any) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(TypeError, match=rf"texts\[2\] is {type(wrong).__name__}, not str"):
            await mesh.encode(["x", "y", wrong])
    assert fake.heard == []


async def test_ids_must_fit(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(ValueError, match="1 ids for 2 texts"):
            await mesh.encode_items(["x", "y"], ids=["a"])
        with pytest.raises(ValueError, match=r"ids\[0\]"):
            await mesh.encode_items(["x"], ids=["\udc00"])
    assert fake.heard == []


def test_a_text_beyond_any_message_is_named() -> None:
    with pytest.raises(shoal.InvalidText, match=r"texts\[1\] has 62,914,561 bytes"):
        list(cut(["x", "x" * (TEXT_BYTES_SENT + 1)]))


@pytest.mark.parametrize(
    "target", ["", "localhost", "http://localhost:1", "host:port", "unix:", "unix:relative", "a b:1", ":50051"]
)
def test_bad_targets(target: str) -> None:
    with pytest.raises(ValueError, match='"host:port" or "unix:/path"'):
        shoal.connect(target)


@pytest.mark.parametrize("target", ["127.0.0.1:50051", "mesh.example.org:443", "[::1]:50051", "unix:/run/shoal.sock"])
def test_good_targets(target: str) -> None:
    with shoal.connect(target) as mesh:
        assert mesh.target == target


@pytest.mark.parametrize("token", ["", " ", "a\nb", "ü"])
def test_bad_tokens(token: str) -> None:
    with pytest.raises(ValueError, match="token") as e:
        shoal.connect(token=token)
    assert not token.strip() or token not in str(e.value)


def test_chunks_close_by_items_and_bytes() -> None:
    texts = [*["ü"] * (CHUNK_ITEMS + 1), "x" * CHUNK_BYTES, *["y" * (CHUNK_BYTES // 2)] * 3]
    chunks = list(cut(texts, ids=[str(index) for index in range(len(texts))]))
    assert [text for chunk in chunks for text in chunk.texts] == texts
    assert [name for chunk in chunks for name in chunk.ids or []] == [str(index) for index in range(len(texts))]
    assert [len(chunk.texts) for chunk in chunks] == [CHUNK_ITEMS, 1, 1, 2, 1]
    assert [chunk.first_index for chunk in chunks] == [
        0,
        CHUNK_ITEMS,
        CHUNK_ITEMS + 1,
        CHUNK_ITEMS + 2,
        CHUNK_ITEMS + 4,
    ]
    assert all(chunk.utf8_bytes == sum(len(text.encode()) for text in chunk.texts) for chunk in chunks)
