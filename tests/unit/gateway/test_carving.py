"""Carving: with protobuf on what is left, it gives what protobuf gives on the whole, or leaves all to protobuf."""

from __future__ import annotations

import os

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from shoal.v1 import inference_pb2 as pb
from shoal.view.v1 import view_pb2
from shoal_common import errors, limits
from shoal_gateway import checks, infer_messages
from shoal_gateway.carving import FIELDS, carve

ITEMS = checks.ITEMS_FIELD
LARGE = os.urandom(limits.BLOB_ITEM_BYTES + 1)

fields = st.one_of(
    st.builds(lambda text: pb.EncodeRequest(model=text).SerializeToString(), st.text(max_size=5)),
    st.builds(lambda text: pb.EncodeRequest(items=[pb.Item(text=text)]).SerializeToString(), st.text(max_size=300)),
    st.builds(lambda number: pb.EncodeRequest(priority=number).SerializeToString(), st.integers(-3, 2**31 - 1)),
    st.just(b"\x79" + bytes(8)),  # field 15, eight bytes
    st.just(b"\x7d" + bytes(4)),  # field 15, four bytes
    st.just(b"\x50\x07"),  # field 10 as a number
    st.just(b"\x7b\x7c"),  # field 15, an empty group
    st.binary(max_size=4),
)


@given(st.lists(fields, max_size=8).map(b"".join))
def test_it_gives_what_protobuf_gives(raw: bytes) -> None:
    carved = carve(raw, ITEMS)
    if carved is None:
        return
    try:
        expected = view_pb2.RequestView.FromString(raw)
    except DecodeError:
        with pytest.raises(DecodeError):
            view_pb2.RequestView.FromString(carved.rest)
        return
    assert [bytes(value) for value in carved.values] == list(expected.items)
    del expected.items[:]
    assert view_pb2.RequestView.FromString(carved.rest).SerializeToString() == expected.SerializeToString()


@given(st.lists(fields, max_size=8).map(b"".join), st.integers(0, 100))
def test_messages_that_are_cut_off_are_left_to_protobuf(raw: bytes, cut: int) -> None:
    carved = carve(raw[:cut], ITEMS)
    assert carved is None or len(carved.rest) <= cut


def test_it_takes_what_is_whole() -> None:
    request = pb.EncodeRequest(model="m", items=[pb.Item(id=str(n)) for n in range(3)], priority=pb.PRIORITY_BULK)
    carved = carve(request.SerializeToString(), ITEMS)
    assert carved is not None and [bytes(v) for v in carved.values] == [i.SerializeToString() for i in request.items]


def test_messages_of_endless_fields_are_left_to_protobuf() -> None:
    assert carve(b"\x52\x00" * FIELDS, ITEMS) is None
    assert carve(b"\x52\x00" * (FIELDS - 1), ITEMS) is not None
    assert carve(b"\x0a" + b"\xff" * 20, ITEMS) is None
    assert carve(b"\xff" * 20, ITEMS) is None


def test_a_large_item_is_a_part_of_its_message() -> None:
    items = [pb.Item(id="small"), pb.Item(media=pb.Media(data=LARGE)), pb.Item(id="last")]
    request = pb.EncodeRequest(model="m", items=items)
    raw = pb.InferRequest(request_id="r", deadline_ms=9, encode=request).SerializeToString()
    message = infer_messages.parse(raw)
    assert (message.request_id, message.deadline_ms, message.error) == (b"r", 9, None)
    assert isinstance(message.encode, memoryview) and message.encode.obj is raw
    parsed = checks.parse(message.encode)
    assert parsed.view.model == "m"
    assert [isinstance(item, memoryview) for item in parsed.items] == [False, True, False]
    assert [bytes(item) for item in parsed.items] == [item.SerializeToString() for item in items]


def test_what_is_wrong_with_a_large_message_is_said_as_of_a_small_one() -> None:
    encode = b"\x52" + pb.InferRequest(encode=pb.EncodeRequest(model=LARGE.hex())).SerializeToString()[1:]
    refused = infer_messages.parse(encode)
    assert refused.error is not None and "request_id" in refused.error.message
    refused = infer_messages.parse(encode[:-1])
    assert refused.error is not None and refused.error.reason == "MALFORMED_MESSAGE"
    with pytest.raises(errors.CallError) as malformed:
        checks.parse(b"\x0a" + b"\xff" * 9 + LARGE)
    assert malformed.value.reason == "MALFORMED_MESSAGE"
    unknown = infer_messages.parse(
        pb.InferRequest(request_id="r").SerializeToString() + b"\x5a\xff\xff\x7f" + bytes(2_097_151)
    )
    assert unknown.error is not None and "11" in unknown.error.message
    nothing = infer_messages.parse(pb.InferRequest(request_id="r", deadline_ms=1).SerializeToString())
    assert nothing.error is not None and "set encode" in nothing.error.message
