"""The header of a safetensors file: what it says of its tensors, checked against the file before any is read.

The format is 8 bytes of length (little-endian), a JSON object, then the tensors' bytes without gaps:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, BinaryIO, NamedTuple

PREFIX_BYTES = 8
METADATA = "__metadata__"
DIMENSIONS = 8
_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


class HeaderError(ValueError):
    """The file is cut short, or no safetensors file. Says what is wrong."""


class Tensor(NamedTuple):
    """A tensor as the header describes it."""

    element_type: str
    """In the format's own words, such as F32."""
    shape: tuple[int, ...]


def read(file: BinaryIO, size_bytes: int, most_bytes: int) -> dict[str, Tensor]:
    """Reads the header from a file's begin, and no further; tensors by name.

    Args:
        file: stands at its begin.
        size_bytes: how long the file is.
        most_bytes: how long its header may be.

    Raises:
        HeaderError: what the header says cannot be, or is not what the file holds.
    """
    prefix = file.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES:
        raise HeaderError(f"has {size_bytes:,} bytes and no header: it is no safetensors file, or cut short")
    (header_bytes,) = struct.unpack("<Q", prefix)
    if header_bytes > size_bytes - PREFIX_BYTES:
        raise HeaderError(
            f"says that its header has {header_bytes:,} bytes, and the file has {size_bytes:,}: it is no safetensors "
            "file, or cut short"
        )
    if header_bytes > most_bytes:
        raise HeaderError(f"has a header of {header_bytes:,} bytes; at most {most_bytes:,} are read")
    try:
        header = json.loads(file.read(header_bytes))
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"has a header that is not JSON: {str(error)[:200]}") from None
    if not isinstance(header, dict):
        raise HeaderError("has a header that is no JSON object")
    spans = {name: _span(name, entry) for name, entry in header.items() if name != METADATA}
    _check_spans(spans, size_bytes - PREFIX_BYTES - header_bytes)
    return {name: tensor for name, (tensor, _, _) in spans.items()}


def _span(name: str, entry: Any) -> tuple[Tensor, int, int]:
    """A tensor and where it begins and ends, its numbers checked."""
    shown = name[:200]
    try:
        element_type, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        item_bytes = _BYTES[element_type]
    except (LookupError, TypeError, ValueError):
        raise HeaderError(f"describes {shown!r} by no dtype that is known, or without shape or data_offsets") from None
    if not isinstance(shape, list) or len(shape) > DIMENSIONS or not all(map(_is_count, [*shape, begin, end])):
        raise HeaderError(f"describes {shown!r} by numbers that are no sizes")
    if end - begin != item_bytes * math.prod(shape):
        raise HeaderError(f"gives {shown!r} {end - begin:,} bytes, which is not what its dtype and shape {shape} take")
    return Tensor(element_type, tuple(shape)), begin, end


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _check_spans(spans: dict[str, tuple[Tensor, int, int]], data_bytes: int) -> None:
    """Raises HeaderError unless the tensors fill the rest of the file, one after the other."""
    at = 0
    for name, (_, begin, end) in sorted(spans.items(), key=lambda span: span[1][1:]):
        if begin != at:
            raise HeaderError(f"puts {name[:200]!r} at byte {begin:,} of its data, where {at:,} was to come")
        at = end
    if at != data_bytes:
        raise HeaderError(f"describes {at:,} bytes of tensors and holds {data_bytes:,}: it is cut short, or too long")
