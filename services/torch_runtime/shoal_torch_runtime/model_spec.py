"""What the runtime needs to know of a model's profile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, cast

from shoal_torch_runtime.errors import LoadError

Pooling = Literal["mean", "cls", "last"]
ElementChoice = Literal["auto", "f32", "bf16"]

_POOLINGS = ("mean", "cls", "last")
_ELEMENT_CHOICES = ("auto", "f32", "bf16")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How a model is to be run. The registry has validated the profile; here only what is read is checked."""

    dimensions: int
    max_tokens: int
    """Longest row, special tokens included."""
    pooling: Pooling = "mean"
    element_type: ElementChoice = "auto"

    @classmethod
    def parse(cls, profile_json: str, device: str = "cpu") -> ModelSpec:
        """Reads a profile's canonical JSON for a device such as cpu or cuda:0.

        Raises:
            LoadError: not JSON, or a field that is read is missing or out of range; names the field.
        """
        try:
            profile = json.loads(profile_json)
        except ValueError as error:
            raise LoadError(f"profile: is not JSON: {error}") from None
        if not isinstance(profile, dict):
            raise LoadError("profile: is not a JSON object")
        return cls(
            dimensions=_positive(profile, "dimensions"),
            max_tokens=_positive(profile, "max_tokens"),
            pooling=cast(Pooling, _one_of(_encode(profile, "pooling"), _POOLINGS, "encode.pooling")),
            element_type=_element_type(profile, "cuda" if device.startswith("cuda") else "cpu"),
        )


def _encode(profile: dict[str, Any], key: str) -> Any:
    try:
        return profile["encode"][key]
    except (KeyError, TypeError):
        raise LoadError(f"profile: encode.{key} is missing") from None


def _positive(profile: dict[str, Any], key: str) -> int:
    value = _encode(profile, key)
    if not isinstance(value, int) or value < 1:
        raise LoadError(f"profile: encode.{key} must be a whole number from 1, got {value!r}")
    return value


def _one_of(value: Any, known: tuple[str, ...], field: str) -> str:
    if value not in known:
        raise LoadError(f"profile: {field} must be one of {', '.join(known)}, got {value!r}")
    return value


def _element_type(profile: dict[str, Any], kind: str) -> ElementChoice:
    tuned = (profile.get("tuned") or {}).get(kind) or {}
    value = tuned.get("element_type") or profile.get("element_type", "auto")
    return cast(ElementChoice, _one_of(value, _ELEMENT_CHOICES, "element_type"))
