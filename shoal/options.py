"""The keywords of an encode call: their values, their checks, and the request they make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

from shoal.choices import Priority, Role, Truncation, Type
from shoal.v1 import inference_pb2

DEFAULT_MODEL = "minilm"
DEFAULT_TIMEOUT_S = 30.0


class EncodeKeywords(TypedDict, total=False):
    """Keywords of encode, encode_items and encode_stream; all may be left out."""

    model: str
    """A model's name or alias. Default "minilm"."""
    adapter: str | None
    """An adapter of the model, name or name@version."""
    dimensions: int | None
    """Keep the first so many dimensions, then normalise again. Default: the model's."""
    normalize: bool | None
    """Whether vectors are scaled to length 1. Default: the model's profile says."""
    type: Type
    """Element type: "f32" (default), "f16", "bf16" (returned as float32, exactly), "int8" or "binary"."""
    role: Role | None
    """Which of the model's prompts goes before each text. Default: the profile's."""
    truncation: Truncation
    """A text with too many tokens is cut at its "end" (default) or an "error" of its item."""
    max_tokens: int | None
    """Most tokens of a text, special tokens included. Default: the profile's."""
    priority: Priority
    """"interactive" (default) is served before "bulk"."""
    timeout: float | None
    """Seconds until DeadlineExceeded, default 30; None for no limit of the call."""
    idempotency_key: str | None
    """Keeps a caller on one side of a canary; at most 256 bytes."""


@dataclass(frozen=True)
class EncodeCall:
    """Checked keywords: a request without items, and how long the call may take."""

    request: inference_pb2.EncodeRequest
    timeout_s: float | None
    type: Type

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> EncodeCall:
        """Checks keywords without calling anyone.

        Raises ValueError for a value that is never allowed, naming those that are, and TypeError for
        an unknown keyword or a value of the wrong type.
        """
        unknown = sorted(set(keywords) - set(EncodeKeywords.__annotations__))
        if unknown:
            raise TypeError(f"unknown keyword {unknown[0]!r}; known are {', '.join(EncodeKeywords.__annotations__)}")
        element_type = _one_of("type", keywords.get("type", "f32"), Type)
        role = keywords.get("role")
        options = inference_pb2.EncodeOptions(
            type=f"ELEMENT_TYPE_{element_type.upper()}",
            normalize=_boolean("normalize", keywords.get("normalize")),
            dimensions=_positive("dimensions", keywords.get("dimensions")),
            role=None if role is None else f"ENCODE_ROLE_{_one_of('role', role, Role).upper()}",
            truncation=f"TRUNCATION_{_one_of('truncation', keywords.get('truncation', 'end'), Truncation).upper()}",
            max_tokens=_positive("max_tokens", keywords.get("max_tokens")),
        )
        model = _name("model", keywords.get("model", DEFAULT_MODEL))
        if not model:
            raise ValueError("model is empty")
        request = inference_pb2.EncodeRequest(
            model=model,
            adapter=_name("adapter", keywords.get("adapter")),
            idempotency_key=_name("idempotency_key", keywords.get("idempotency_key")),
            options=options,
            priority=f"PRIORITY_{_one_of('priority', keywords.get('priority', 'interactive'), Priority).upper()}",
        )
        return cls(request, seconds(keywords.get("timeout", DEFAULT_TIMEOUT_S)), element_type)  # type: ignore[arg-type]


def seconds(timeout: float | None) -> float | None:
    """The timeout itself. Raises ValueError unless it is a positive number or None."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r}; it is a number of seconds, or None")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout is {timeout!r}; it is above 0 s, or None")
    return float(timeout)


def _one_of(keyword: str, value: object, allowed: Any) -> str:
    names = get_args(allowed)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{keyword} is {value!r}; it is one of {', '.join(map(repr, names))}")
    return value


def _positive(keyword: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{keyword} is {value!r}; it is a whole number, or None")
    if not 1 <= value < 2**32:
        raise ValueError(f"{keyword} is {value}; it is at least 1 and below 2**32")
    return value


def _boolean(keyword: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{keyword} is {value!r}; it is True, False or None")
    return value


def _name(keyword: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{keyword} is {value!r}; it is a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{keyword} is {value!a}, which is not valid Unicode") from None
    return value
