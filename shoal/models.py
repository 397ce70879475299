"""A model as the mesh describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.v1 import inference_pb2, models_pb2

ModelState = Literal["waiting", "loading", "ready", "failed", "unspecified"]


@dataclass(frozen=True)
class Model:
    """What a model offers, and whether it answers now."""

    name: str
    revision: str
    """Digest of its profile."""
    state: ModelState
    """"waiting" for a worker, "loading", "ready", or "failed" as `error` says."""
    error: str
    encode_outputs: tuple[str, ...]
    """Of "dense", "sparse" and "multivector"."""
    dimensions: int
    """Length of its dense vectors."""
    default_max_tokens: int
    """Most tokens of a text if the call says nothing."""
    max_tokens: int
    """Most tokens of a text that a call may ask for."""
    normalize: bool
    """Whether vectors are normalised if the call says nothing."""
    aliases: tuple[str, ...]
    """Names that resolve to it."""


def state_name(state: int) -> ModelState:
    """A message's state; those unknown here are "unspecified"."""
    known = state if state in models_pb2.ModelState.values() else models_pb2.MODEL_STATE_UNSPECIFIED
    name = models_pb2.ModelState.Name(known).removeprefix("MODEL_STATE_").lower()
    return name  # type: ignore[return-value]


def from_message(message: models_pb2.Model) -> Model:
    """The model that a message describes; states unknown here read "unspecified"."""
    outputs = (each for each in message.encode_outputs if each in inference_pb2.EncodeOutput.values())
    return Model(
        name=message.name,
        revision=message.revision,
        state=state_name(message.state),
        error=message.error,
        encode_outputs=tuple(
            inference_pb2.EncodeOutput.Name(each).removeprefix("ENCODE_OUTPUT_").lower() for each in outputs
        ),
        dimensions=message.dimensions,
        default_max_tokens=message.default_max_tokens,
        max_tokens=message.max_tokens,
        normalize=message.normalize,
        aliases=tuple(message.aliases),
    )
