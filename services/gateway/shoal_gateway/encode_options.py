"""EncodeOptions: parsed, checked against the model's profile, and remembered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from shoal.v1 import inference_pb2
from shoal_common import errors
from shoal_common.registry_view import RegisteredModel

REMEMBERED = 1024
REMEMBERED_BYTES = 256
OUTPUTS: dict[str, inference_pb2.EncodeOutput] = {"dense": inference_pb2.ENCODE_OUTPUT_DENSE}
"""By the name that profiles use."""

Violation = tuple[str, str]


@dataclass(frozen=True)
class CheckedOptions:
    """Options that the model can honour."""

    options: bytes
    """As units carry them: written anew, so that equal options are equal bytes of bounded size."""
    max_tokens: int
    """Most tokens of a text."""


class OptionChecks:
    """Checks options, each (revision, bytes) once: most callers send the same few for ever."""

    def __init__(self) -> None:
        self._checked: dict[tuple[str, bytes], CheckedOptions] = {}

    def check(self, raw: bytes, model: RegisteredModel) -> CheckedOptions:
        """The checked options.

        Raises:
            CallError: as `check_options`.
        """
        key = (model.digest, raw)
        checked = self._checked.get(key)
        if checked is None:
            checked = check_options(raw, model)
            if len(raw) <= REMEMBERED_BYTES:
                if len(self._checked) >= REMEMBERED:
                    del self._checked[next(iter(self._checked))]
                self._checked[key] = checked
        return checked


def check_options(raw: bytes, model: RegisteredModel) -> CheckedOptions:
    """Parses options and checks them against the profile.

    Raises:
        CallError: INVALID_ARGUMENT naming every field that is malformed, unknown or beyond the profile.
    """
    try:
        options = inference_pb2.EncodeOptions.FromString(raw)
    except DecodeError:
        raise errors.invalid_field("options", "is not an EncodeOptions message", "MALFORMED_MESSAGE") from None
    if violations := list(_violations(options, model)):
        raise errors.invalid_fields(violations)
    encode = model.profile.encode
    return CheckedOptions(
        options=options.SerializeToString(deterministic=True),
        max_tokens=options.max_tokens if options.HasField("max_tokens") else encode.default_max_tokens,
    )


def _violations(options: inference_pb2.EncodeOptions, model: RegisteredModel) -> Iterator[Violation]:
    encode = model.profile.encode
    yield from unknown_fields(options, "options")
    yield from _outputs(options, model)
    yield from unknown_value("options.type", options.type, inference_pb2.ElementType)
    yield from unknown_value("options.role", options.role, inference_pb2.EncodeRole)
    yield from unknown_value("options.truncation", options.truncation, inference_pb2.Truncation)
    normalize = options.normalize if options.HasField("normalize") else encode.normalize
    if options.type == inference_pb2.ELEMENT_TYPE_INT8 and not normalize:
        yield "options.type", "INT8 holds normalised vectors only; ask for normalize or another type"
    if options.HasField("dimensions") and not 1 <= options.dimensions <= encode.dimensions:
        yield (
            "options.dimensions",
            f"dimensions {options.dimensions}: the model {model.name} offers 1 to {encode.dimensions}",
        )
    least = encode.special_tokens + 1
    if options.HasField("max_tokens") and not least <= options.max_tokens <= encode.max_tokens:
        yield (
            "options.max_tokens",
            f"max_tokens {options.max_tokens}: the model {model.name} offers {least} to {encode.max_tokens}",
        )


def _outputs(options: inference_pb2.EncodeOptions, model: RegisteredModel) -> Iterator[Violation]:
    offered = encode_outputs(model)
    names = ", ".join(_short(inference_pb2.EncodeOutput, output) for output in offered)
    for at, output in enumerate(options.outputs):
        if output not in inference_pb2.EncodeOutput.values():
            yield "options.outputs", f"{output} is no EncodeOutput; the model {model.name} offers {names}"
        elif output not in offered:
            name = _short(inference_pb2.EncodeOutput, output)
            yield "options.outputs", f"{name}: the model {model.name} offers {names}"
        elif output in options.outputs[:at]:
            yield "options.outputs", f"{_short(inference_pb2.EncodeOutput, output)} is asked for twice"
        else:
            continue
        return


def encode_outputs(model: RegisteredModel) -> list[inference_pb2.EncodeOutput]:
    """What Encode can compute with a model."""
    return [OUTPUTS[name] for name in model.profile.encode.outputs]


def unknown_value(field: str, value: int, enum: EnumTypeWrapper) -> Iterator[Violation]:
    """A violation if an open enum's number is not one of its values."""
    if value not in enum.values():
        names = ", ".join(_short(enum, number) for number in enum.values() if number)
        yield field, f"{value} is no {enum.DESCRIPTOR.name}; known are {names}"


def unknown_fields(message: Message, field: str) -> Iterator[Violation]:
    """A violation if a message holds fields that this mesh doesn't know: they would be ignored."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        yield field, f"field number {unknown[0].field_number} is not known here"


def _short(enum: EnumTypeWrapper, number: int) -> str:
    """An enum value's name without the prefix that all of them share: ENCODE_OUTPUT_DENSE is DENSE."""
    zero = enum.Name(0).removesuffix("UNSPECIFIED")
    return enum.Name(number).removeprefix(zero)
