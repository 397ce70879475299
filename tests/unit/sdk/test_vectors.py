"""Shapes and element types of what encode returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.tensors import to_array
from shoal.v1 import inference_pb2
from tests.unit.sdk.fake_mesh import DIMENSIONS, FakeMesh


async def test_a_list_gives_rows_in_order(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        vectors = await mesh.encode(["3", "1", "2"])
    assert vectors.shape == (3, DIMENSIONS)
    assert vectors.dtype == np.float32
    assert vectors[:, 0].tolist() == [3, 1, 2]
    assert vectors.flags.writeable
    assert fake.ways == ["Encode"]


async def test_a_single_text_gives_one_vector(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        assert (await mesh.encode("3")).shape == (DIMENSIONS,)
        assert (await mesh.encode(text for text in ("3", "4"))).shape == (2, DIMENSIONS)


@pytest.mark.parametrize(
    ("element_type", "dtype", "first"),
    [
        ("f32", np.float32, [1, 1, 0]),
        ("f16", np.float16, [1, 1, 0]),
        ("bf16", np.float32, [1, 1, 0]),
        ("int8", np.int8, [127, 127, 0]),
    ],
)
async def test_element_types(fake: FakeMesh, element_type: Any, dtype: Any, first: list[float]) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        vectors = await mesh.encode(["1"], type=element_type)
    assert vectors.dtype == dtype
    assert vectors.shape == (1, DIMENSIONS)
    assert vectors[0, :3].tolist() == first


async def test_binary_is_packed_bits(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        vectors = await mesh.encode(["1", "0"], type="binary", dimensions=13)
    assert vectors.dtype == np.uint8
    assert vectors.tolist() == [[0b11000000, 0], [0b01000000, 0]]


async def test_no_texts_give_no_rows(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        assert (await mesh.encode([])).shape == (0, DIMENSIONS)
        assert (await mesh.encode([], type="binary", model="default")).shape == (0, DIMENSIONS // 8)
        assert (await mesh.encode([], dimensions=7)).shape == (0, 7)
        assert (await mesh.encode_items([])).results == []
    assert fake.heard == []


def test_bf16_is_widened_exactly() -> None:
    patterns = np.arange(2**16, dtype="<u2")
    tensor = inference_pb2.Tensor(type=inference_pb2.ELEMENT_TYPE_BF16, shape=[2**16], data=patterns.tobytes())
    widened = to_array(tensor)
    assert widened.dtype == np.float32
    assert np.array_equal(widened.view(np.uint32), patterns.astype(np.uint32) * 65536)


def test_malformed_tensors_are_named() -> None:
    with pytest.raises(ValueError, match=r"7 bytes for the shape \(2,\)"):
        to_array(inference_pb2.Tensor(type=inference_pb2.ELEMENT_TYPE_F32, shape=[2], data=b"1234567"))
    with pytest.raises(ValueError, match="unknown here"):
        to_array(inference_pb2.Tensor(shape=[0]))


async def test_details_of_items(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        answer = await mesh.encode_items(["3", "x" * 300], ids=["a", "b"])
    first, second = answer.results
    assert isinstance(first, shoal.Embedding)
    assert isinstance(second, shoal.Embedding)
    assert (first.index, first.id, first.input_tokens, first.used_tokens, first.truncated) == (0, "a", 3, 3, False)
    assert (second.index, second.id, second.input_tokens, second.used_tokens, second.truncated) == (
        1,
        "b",
        302,
        256,
        True,
    )
    (origin,) = answer.provenance
    assert (origin.model, origin.revision, origin.runtime, origin.device) == ("minilm", "r1", "sim", "cpu")
    assert [(run.first_index, run.count) for run in origin.runs] == [(0, 2)]


async def test_options_reach_the_mesh(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target, token="secret") as mesh:
        await mesh.encode(
            ["3"],
            model="default",
            adapter="a@2",
            dimensions=8,
            normalize=False,
            type="f16",
            role="query",
            truncation="error",
            max_tokens=64,
            priority="bulk",
            timeout=5,
            idempotency_key="k",
        )
    (heard,) = fake.heard
    assert heard.request == inference_pb2.EncodeRequest(
        model="default",
        adapter="a@2",
        idempotency_key="k",
        options=inference_pb2.EncodeOptions(
            type=inference_pb2.ELEMENT_TYPE_F16,
            normalize=False,
            dimensions=8,
            role=inference_pb2.ENCODE_ROLE_QUERY,
            truncation=inference_pb2.TRUNCATION_ERROR,
            max_tokens=64,
        ),
        priority=inference_pb2.PRIORITY_BULK,
        items=[inference_pb2.Item(text="3")],
    )
    assert heard.metadata["authorization"] == "Bearer secret"
    assert 4 < heard.limit_s < 5.5  # gRPC rounds up


async def test_what_is_not_said_is_left_to_the_profile(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        await mesh.encode(["3"])
    options = fake.heard[0].request.options
    assert not any(options.HasField(name) for name in ("normalize", "dimensions", "max_tokens"))
    assert options.role == inference_pb2.ENCODE_ROLE_UNSPECIFIED
