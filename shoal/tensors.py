"""Reads the contract's tensors into numpy arrays."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from shoal.v1 import inference_pb2

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_WIRE = {
    inference_pb2.ELEMENT_TYPE_F32: np.dtype("<f4"),
    inference_pb2.ELEMENT_TYPE_F16: np.dtype("<f2"),
    inference_pb2.ELEMENT_TYPE_BF16: np.dtype("<u2"),
    inference_pb2.ELEMENT_TYPE_INT8: np.dtype("i1"),
    inference_pb2.ELEMENT_TYPE_BINARY: np.dtype("u1"),
}
_DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.float32, "int8": np.int8, "binary": np.uint8}


def dtype_of(element_type: str) -> np.dtype[Any]:
    """The numpy dtype in which an element type ("f32", …) is returned."""
    return np.dtype(_DTYPES[element_type])


def row_length(element_type: str, dimensions: int) -> int:
    """Elements of a returned row: the dimensions, or the bytes that hold as many bits."""
    return math.ceil(dimensions / 8) if element_type == "binary" else dimensions


def to_array(tensor: inference_pb2.Tensor) -> Array:
    """The tensor's elements, read-only where they could be shared with the message.

    F32, F16 and INT8 keep their type and shape. BF16 becomes float32, exactly. BINARY becomes uint8,
    its last axis of d bits as ceil(d/8) bytes, most significant bit first (numpy.unpackbits reads it).
    Raises ValueError if the tensor is malformed.
    """
    wire = _WIRE.get(tensor.type)
    if wire is None:
        raise ValueError(f"the mesh sent a tensor of an element type unknown here ({tensor.type})")
    shape = list(tensor.shape)
    if tensor.type == inference_pb2.ELEMENT_TYPE_BINARY and shape:
        shape[-1] = math.ceil(shape[-1] / 8)
    if len(tensor.data) != wire.itemsize * math.prod(shape):
        raise ValueError(f"the mesh sent a tensor of {len(tensor.data)} bytes for the shape {tuple(tensor.shape)}")
    array = np.frombuffer(tensor.data, wire).reshape(shape)
    if tensor.type == inference_pb2.ELEMENT_TYPE_BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
