"""The views mirror the public messages: same numbers, same wire types, so that bytes pass unread."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from shoal.v1 import inference_pb2
from shoal.view.v1 import view_pb2

VARINT = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_ENUM,
}
LENGTH_DELIMITED = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE}

REQUESTS = [f.message_type for f in inference_pb2.InferRequest.DESCRIPTOR.oneofs_by_name["request"].fields]
RESPONSES = [
    f.message_type
    for f in inference_pb2.InferResponse.DESCRIPTOR.oneofs_by_name["response"].fields
    if f.name != "error"
]
RESULTS = [response.fields_by_name["results"].message_type for response in RESPONSES if response]


def wire(field: FieldDescriptor) -> tuple[str, str, bool]:
    """A field's name, wire type and whether it repeats."""
    kind = "varint" if field.type in VARINT else "bytes" if field.type in LENGTH_DELIMITED else str(field.type)
    return field.name, kind, field.is_repeated


def fields(message: Any) -> dict[int, tuple[str, str, bool]]:
    return {field.number: wire(field) for field in message.fields}


def test_every_method_of_the_stream_has_its_messages() -> None:
    assert len(REQUESTS) == len(RESPONSES) == len(RESULTS) >= 1


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda d: d.name)
def test_request_view(request_type: Descriptor) -> None:
    assert fields(view_pb2.RequestView.DESCRIPTOR) == fields(request_type)


@pytest.mark.parametrize("response_type", RESPONSES, ids=lambda d: d.name)
def test_response_view(response_type: Descriptor) -> None:
    assert fields(view_pb2.ResponseView.DESCRIPTOR) == fields(response_type)


@pytest.mark.parametrize("result_type", RESULTS, ids=lambda d: d.name)
def test_result_view(result_type: Descriptor) -> None:
    view = fields(view_pb2.ResultView.DESCRIPTOR)
    assert view == {number: field for number, field in fields(result_type).items() if number in view}
    assert set(view) == {number for number in fields(result_type) if number < 10}


@pytest.mark.parametrize(
    ("view", "public"),
    [
        (view_pb2.InferRequestView, inference_pb2.InferRequest),
        (view_pb2.InferResponseView, inference_pb2.InferResponse),
    ],
)
def test_stream_views(view: type[Message], public: type[Message]) -> None:
    assert fields(view.DESCRIPTOR) == fields(public.DESCRIPTOR)
    assert all(field.has_presence for field in view.DESCRIPTOR.fields if field.number in (3, 10) and field.message_type)


def test_items_and_results_pass_unread() -> None:
    broken = b"\x12\x04ab\xff\xfe"
    request = inference_pb2.EncodeRequest(model="m", priority=inference_pb2.PRIORITY_BULK)
    raw = request.SerializeToString() + b"\x52" + bytes([len(broken)]) + broken
    view = view_pb2.RequestView.FromString(raw)
    assert (view.model, view.priority, list(view.items)) == ("m", 2, [broken])
    assert view.SerializeToString() == raw

    result = inference_pb2.EncodeResult(id="a", dense=inference_pb2.Tensor(data=b"1234"))
    written = view_pb2.ResponseView(
        provenance=inference_pb2.Provenance(model="m").SerializeToString(), results=[result.SerializeToString()]
    )
    response = inference_pb2.EncodeResponse.FromString(written.SerializeToString())
    assert response.provenance.model == "m" and list(response.results) == [result]
