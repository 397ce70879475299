"""Messages of the Infer stream: one that cannot be served says why, under its id as far as that can be repeated."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2

from shoal.v1 import inference_pb2 as pb
from shoal_common import errors, limits
from shoal_gateway.infer_messages import ECHOED_ID_BYTES, answered, parse, refused
from tests.unit.gateway.test_encode_options import fields

ENCODE = pb.EncodeRequest(model="m", items=[pb.Item(text="a")])


def test_a_good_request() -> None:
    raw = pb.InferRequest(request_id="r" * limits.REQUEST_ID_BYTES, deadline_ms=7, encode=ENCODE).SerializeToString()
    request = parse(raw)
    assert request.error is None
    assert request.request_id == b"r" * limits.REQUEST_ID_BYTES
    assert (request.deadline_ms, request.encode) == (7, ENCODE.SerializeToString())


def test_an_empty_encode_request_is_a_request() -> None:
    assert parse(pb.InferRequest(request_id="r", encode=pb.EncodeRequest()).SerializeToString()).error is None


@pytest.mark.parametrize(
    ("raw", "echoed", "field"),
    [
        (b"\xff", b"", "(message)"),
        (pb.InferRequest(encode=ENCODE).SerializeToString(), b"", "request_id"),
        (b"\x0a\x02\xff\xfe\x52\x00", b"", "request_id"),
        (pb.InferRequest(request_id="r").SerializeToString(), b"r", "request"),
        (pb.InferRequest(request_id="r" * 257, encode=ENCODE).SerializeToString(), b"r" * 257, "request_id"),
        (pb.InferRequest(request_id="r" * (ECHOED_ID_BYTES + 1)).SerializeToString(), b"", "request_id"),
        (pb.InferRequest(request_id="r").SerializeToString() + b"\x5a\x00", b"r", "request"),
    ],
)
def test_what_cannot_be_served(raw: bytes, echoed: bytes, field: str) -> None:
    request = parse(raw)
    assert request.request_id == echoed
    assert request.error is not None and request.error.code == code_pb2.INVALID_ARGUMENT
    assert fields(request.error) == [field]


def test_answers_are_public_messages() -> None:
    response = pb.EncodeResponse(provenance=pb.Provenance(model="m"))
    answer = pb.InferResponse.FromString(answered(b"r", response.SerializeToString()))
    assert (answer.request_id, answer.last, answer.encode) == ("r", True, response)
    answer = pb.InferResponse.FromString(refused(b"r", errors.internal(), "the-id"))
    assert (answer.request_id, answer.last, answer.error.code) == ("r", True, code_pb2.INTERNAL)
    assert b"the-id" in answer.error.SerializeToString()
