"""Shoal's Python client: `shoal.connect` blocks, `shoal.aio.connect` is for asyncio.

import shoal

with shoal.connect("127.0.0.1:50051") as mesh:
    vectors = mesh.encode(["a text", "another"], model="minilm")  # float32, shape (2, 384)

The names in `__all__` are the whole public surface. They load on first use, so that the command line
and the servers, which live in this package too, don't pay for numpy and gRPC before they need them.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import aio
    from shoal.errors import (
        CallError,
        DeadlineExceeded,
        InternalError,
        InvalidRequest,
        InvalidText,
        ItemsFailed,
        NotFound,
        Overloaded,
        PermissionDenied,
        ShoalError,
        Unauthenticated,
        Unavailable,
    )
    from shoal.models import Model
    from shoal.results import Embedding, EncodeAnswer, ItemError, Provenance, Run
    from shoal.sync import Mesh, connect

    __version__: str

__all__ = [
    "CallError",
    "DeadlineExceeded",
    "Embedding",
    "EncodeAnswer",
    "InternalError",
    "InvalidRequest",
    "InvalidText",
    "ItemError",
    "ItemsFailed",
    "Mesh",
    "Model",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "Provenance",
    "Run",
    "ShoalError",
    "Unauthenticated",
    "Unavailable",
    "__version__",
    "aio",
    "connect",
]

_HOMES = {
    **dict.fromkeys(("Mesh", "connect"), "shoal.sync"),
    **dict.fromkeys(("Embedding", "EncodeAnswer", "ItemError", "Provenance", "Run"), "shoal.results"),
    "Model": "shoal.models",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("shoal")
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    if name == "aio":
        return import_module("shoal.aio")
    return getattr(import_module(_HOMES.get(name, "shoal.errors")), name)


def __dir__() -> list[str]:
    return __all__
