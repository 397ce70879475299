"""A safetensors file's header: right ones are read, wrong ones are refused before anything of the size they claim."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from shoal_common import safetensors_header
from shoal_common.safetensors_header import HeaderError, Tensor

MOST_BYTES = 10_000


def read(data: bytes) -> dict[str, Tensor]:
    return safetensors_header.read(io.BytesIO(data), len(data), MOST_BYTES)


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_what_safetensors_writes_is_read() -> None:
    tensors = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.float16), "c": np.zeros((0, 4), np.int64)}
    assert read(save(tensors, {"format": "pt"})) == {
        "a": Tensor("F32", (2, 3)),
        "b": Tensor("F16", ()),
        "c": Tensor("I64", (0, 4)),
    }


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no header"),
        (b"PK\x03\x04" + bytes(100), "no safetensors file"),
        (b"\x80\x04\x95" + bytes(100), "no safetensors file"),
        (struct.pack("<Q", 1 << 60) + b"{}", "1,152,921,504,606,846,976"),
        (file_of(b" " * (MOST_BYTES + 1)), "at most 10,000"),
        (file_of(b"{"), "not JSON"),
        (file_of(b"[" * 5_000), "not JSON"),
        (file_of([]), "no JSON object"),
        (file_of({"a": 1}), "without shape"),
        (file_of({"a": entry(dtype="F99")}, bytes(8)), "no dtype that is known"),
        (file_of({"a": entry(dtype=[])}, bytes(8)), "no dtype that is known"),
        (file_of({"a": entry(data_offsets=[0])}, bytes(8)), "without shape"),
        (file_of({"a": entry(shape=[2.0])}, bytes(8)), "no sizes"),
        (file_of({"a": entry(shape=[-2])}, bytes(8)), "no sizes"),
        (file_of({"a": entry(shape=[True, 2])}, bytes(8)), "no sizes"),
        (file_of({"a": entry(shape=[1 << 60])}, bytes(8)), "no sizes"),
        (file_of({"a": entry(shape=[1] * 9)}, bytes(8)), "no sizes"),
        (file_of({"a": entry(shape=[1 << 52, 1 << 52])}, bytes(8)), "is not what its dtype"),
        (file_of({"a": entry(data_offsets=[8, 0])}, bytes(8)), "is not what its dtype"),
        (file_of({"a": entry(data_offsets=[8, 16])}, bytes(16)), "where 0 was to come"),
        (file_of({"a": entry(), "b": entry()}, bytes(16)), "where 8 was to come"),
        (file_of({"a": entry()}, bytes(7)), "cut short"),
        (file_of({"a": entry()}, bytes(9)), "too long"),
    ],
)
def test_what_cannot_be_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(HeaderError, match=what):
        read(data)
