"""Takes large fields out of a message without copying them: protobuf would copy each twice, and once more per level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal_common import limits
from shoal_common.blobs import Data

FIELDS = limits.REQUEST_ITEMS + 16
"""Messages of more fields are left to protobuf, whose loop is in C: they are refused anyway."""
VARINT_BITS = 63
_LENGTHS = {1: 8, 5: 4}
"""Bytes of the wire types of fixed length."""


class Carved(NamedTuple):
    """A message in two parts, which together are all of it."""

    rest: bytes
    """The message without the field, for protobuf."""
    values: Sequence[Data]
    """The field's values in order, as parts of the message where they are large."""


def carve(raw: Data, field: int) -> Carved | None:
    """Takes a length-delimited field out; None for what only protobuf may judge: anything malformed or odd."""
    view, size = memoryview(raw), len(raw)
    rest, values = bytearray(), []
    at = 0
    for _ in range(FIELDS):
        if at == size:
            return Carved(bytes(rest), values)
        begin = at
        tag = _varint(view, at)
        if tag is None:
            return None
        (number, wire_type), at = divmod(tag[0], 8), tag[1]
        if wire_type == 2:
            length = _varint(view, at)
            if length is None or length[1] + length[0] > size:
                return None
            start, at = length[1], length[1] + length[0]
            if number == field:
                value = view[start:at]
                values.append(value if len(value) > limits.BLOB_ITEM_BYTES else bytes(value))
                continue
        elif wire_type == 0:
            value = _varint(view, at)
            if value is None:
                return None
            at = value[1]
        elif wire_type in _LENGTHS:
            at += _LENGTHS[wire_type]
            if at > size:
                return None
        else:
            return None
        rest += view[begin:at]
    return None


def _varint(view: memoryview, at: int) -> tuple[int, int] | None:
    """The number at a place and where it ends; None if it does not end, or is longer than any length or tag."""
    value = 0
    for shift in range(0, VARINT_BITS, 7):
        if at >= len(view):
            return None
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    return None
