"""Options that the model cannot honour are refused by field, never taken for a default."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2, error_details_pb2

from shoal.v1 import inference_pb2 as pb
from shoal_common.errors import CallError
from shoal_gateway.encode_options import REMEMBERED, OptionChecks, check_options
from tests.unit.gateway.fake_mesh import PROFILE
from tests.unit.gateway.models import registered

MODEL = registered()


def fields(error: CallError) -> list[str]:
    bad = next(detail for detail in error.details if isinstance(detail, error_details_pb2.BadRequest))
    return [violation.field for violation in bad.field_violations]


def refused(**options) -> CallError:
    with pytest.raises(CallError) as refusal:
        check_options(pb.EncodeOptions(**options).SerializeToString(), MODEL)
    assert refusal.value.code == code_pb2.INVALID_ARGUMENT
    return refusal.value


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"outputs": [pb.ENCODE_OUTPUT_DENSE]},
        {"dimensions": 1},
        {"dimensions": 384},
        {"max_tokens": 3},
        {"max_tokens": 512},
        {"type": pb.ELEMENT_TYPE_INT8},
        {"type": pb.ELEMENT_TYPE_INT8, "normalize": True},
        {"type": pb.ELEMENT_TYPE_BINARY, "normalize": False},
        {"role": pb.ENCODE_ROLE_QUERY, "truncation": pb.TRUNCATION_ERROR},
    ],
)
def test_good_options_pass_unchanged(options: dict) -> None:
    raw = pb.EncodeOptions(**options).SerializeToString()
    checked = check_options(raw, MODEL)
    assert checked.options == raw
    assert checked.max_tokens == options.get("max_tokens", 256)


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"dimensions": 0}, "options.dimensions", "dimensions 0: the model minilm offers 1 to 384"),
        ({"dimensions": 385}, "options.dimensions", "dimensions 385: the model minilm offers 1 to 384"),
        ({"max_tokens": 2}, "options.max_tokens", "max_tokens 2: the model minilm offers 3 to 512"),
        ({"max_tokens": 513}, "options.max_tokens", "max_tokens 513: the model minilm offers 3 to 512"),
        ({"type": 6}, "options.type", "6 is no ElementType; known are F32, F16, BF16, INT8, BINARY"),
        ({"role": 3}, "options.role", "3 is no EncodeRole; known are QUERY, DOCUMENT"),
        ({"truncation": -1}, "options.truncation", "-1 is no Truncation; known are END, ERROR"),
        ({"outputs": [1, 42]}, "options.outputs", "42 is no EncodeOutput; the model minilm offers DENSE"),
        ({"outputs": [pb.ENCODE_OUTPUT_SPARSE]}, "options.outputs", "SPARSE: the model minilm offers DENSE"),
        ({"outputs": [pb.ENCODE_OUTPUT_UNSPECIFIED]}, "options.outputs", "UNSPECIFIED"),
        ({"outputs": [1, 1]}, "options.outputs", "DENSE is asked for twice"),
        ({"type": pb.ELEMENT_TYPE_INT8, "normalize": False}, "options.type", "normalised"),
    ],
)
def test_what_the_model_cannot_honour(options: dict, field: str, words: str) -> None:
    error = refused(**options)
    assert fields(error) == [field]
    assert words in error.message


def test_all_faults_are_named_at_once() -> None:
    error = refused(dimensions=0, max_tokens=513, role=9)
    assert fields(error) == ["options.role", "options.dimensions", "options.max_tokens"]


def test_int8_needs_a_profile_that_normalises_if_the_request_says_nothing() -> None:
    unscaled = registered(PROFILE.replace("special_tokens", "normalize: false, special_tokens"))
    with pytest.raises(CallError, match="normalised"):
        check_options(pb.EncodeOptions(type=pb.ELEMENT_TYPE_INT8).SerializeToString(), unscaled)


def test_unknown_fields_are_named_by_number() -> None:
    with pytest.raises(CallError, match="field number 111") as refusal:
        check_options(b"\xf8\x06\x01", MODEL)
    assert fields(refusal.value) == ["options"]


def test_garbage() -> None:
    with pytest.raises(CallError) as refusal:
        check_options(b"\xff\xff", MODEL)
    assert refusal.value.reason == "MALFORMED_MESSAGE" and fields(refusal.value) == ["options"]


def test_checked_options_are_bounded_however_often_a_field_is_given() -> None:
    once = pb.EncodeOptions(dimensions=5).SerializeToString()
    assert check_options(once * 100_000, MODEL).options == once


def test_options_are_remembered_by_revision_and_the_memory_is_bounded() -> None:
    checks = OptionChecks()
    raw = pb.EncodeOptions(dimensions=300).SerializeToString()
    assert checks.check(raw, MODEL) is checks.check(raw, MODEL)
    small = registered(PROFILE.replace("384", "200"))
    with pytest.raises(CallError):
        checks.check(raw, small)
    for tokens in range(3, 513):
        for dimensions in (1, 2, 3):
            options = pb.EncodeOptions(max_tokens=tokens, dimensions=dimensions)
            assert checks.check(options.SerializeToString(), MODEL).max_tokens == tokens
    assert len(checks._checked) == REMEMBERED
