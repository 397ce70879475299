"""Requests as a whole: limits at their value and one beyond, each refusal naming field, limit and size."""

from __future__ import annotations

import time

import pytest
from google.rpc import code_pb2

from shoal.v1 import inference_pb2 as pb
from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.errors import CallError
from shoal_gateway.checks import check, parse
from shoal_gateway.encode_options import OptionChecks
from tests.unit.gateway.models import Models, registered
from tests.unit.gateway.test_encode_options import fields

MODELS = Models([registered()])


def request(**values) -> pb.EncodeRequest:
    return pb.EncodeRequest(**{"model": "minilm", "items": [pb.Item(text="a")], **values})


def checked(message: pb.EncodeRequest | bytes):
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    return check(parse(raw), MODELS, OptionChecks())


def refused(message: pb.EncodeRequest | bytes, code: int = code_pb2.INVALID_ARGUMENT) -> CallError:
    with pytest.raises(CallError) as refusal:
        checked(message)
    assert refusal.value.code == code
    return refusal.value


def test_a_good_request() -> None:
    good = checked(request(idempotency_key="k" * limits.IDEMPOTENCY_KEY_BYTES))
    assert good.model.name == "minilm"
    assert good.items == [pb.Item(text="a").SerializeToString()]
    assert good.work_class == work_pb2.WORK_CLASS_INTERACTIVE


@pytest.mark.parametrize(
    ("priority", "work_class"),
    [
        (pb.PRIORITY_UNSPECIFIED, work_pb2.WORK_CLASS_INTERACTIVE),
        (pb.PRIORITY_INTERACTIVE, work_pb2.WORK_CLASS_INTERACTIVE),
        (pb.PRIORITY_BULK, work_pb2.WORK_CLASS_BULK),
    ],
)
def test_priorities(priority: pb.Priority, work_class: work_pb2.WorkClass) -> None:
    assert checked(request(priority=priority)).work_class == work_class


@pytest.mark.parametrize("priority", [3, -1, 2**31 - 1])
def test_unknown_priorities(priority: int) -> None:
    error = refused(request(priority=priority))
    assert fields(error) == ["priority"] and str(priority) in error.message


def test_names() -> None:
    assert fields(refused(request(model=""))) == ["model"]
    error = refused(request(model="minilmm"), code_pb2.NOT_FOUND)
    assert error.reason == "MODEL_NOT_FOUND" and "did you mean minilm?" in error.message
    error = refused(request(adapter="german-law"), code_pb2.NOT_FOUND)
    assert error.reason == "ADAPTER_NOT_FOUND" and "german-law" in error.message


@pytest.mark.parametrize("field", ["model", "adapter"])
def test_endless_names_cost_no_time(field: str) -> None:
    started = time.monotonic()
    error = refused(request(**{field: "x" * 10_000_000}))
    assert fields(error) == [field] and "128" in error.message and "10,000,000" in error.message
    assert time.monotonic() - started < 1


def test_idempotency_key() -> None:
    error = refused(request(idempotency_key="é" * 128 + "k"))
    assert fields(error) == ["idempotency_key"] and "257" in error.message and "256" in error.message


def test_item_counts() -> None:
    item = pb.Item(text="a")
    assert len(checked(request(items=[item] * limits.REQUEST_ITEMS)).items) == limits.REQUEST_ITEMS
    error = refused(request(items=[item] * (limits.REQUEST_ITEMS + 1)))
    assert fields(error) == ["items"] and "2,048" in error.message and "2,049" in error.message
    assert fields(refused(request(items=[]))) == ["items"]


def test_message_size() -> None:
    padding = pb.Item(text="a" * (limits.MIB - 16)).SerializeToString()
    items = (b"\x52" + b"\xf4\xff\x3f" + padding) * 64
    base = request().SerializeToString() + items
    assert len(padding) == 0x0FFFF4
    filler = limits.MESSAGE_BYTES - len(base) - 5
    at_limit = base + b"\x52" + varint4(filler) + bytes(filler)
    assert len(at_limit) == limits.MESSAGE_BYTES
    assert len(parse(at_limit).items) == 66
    error = refused(at_limit + b"\x52")
    assert error.reason == "LIMIT_EXCEEDED" and "67,108,864" in error.message and "67,108,865" in error.message


def varint4(number: int) -> bytes:
    """A varint of four bytes, whatever its value."""
    return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21])


@pytest.mark.parametrize("number", [5, 7, 9, 11, 500])
def test_fields_of_other_requests_are_not_ignored(number: int) -> None:
    tag = number << 3 | 2
    key = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    error = refused(request().SerializeToString() + key + b"\x01a")
    assert f"field number {number}" in error.message


@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", bytes(range(256))])
def test_garbage(garbage: bytes) -> None:
    assert refused(garbage).reason == "MALFORMED_MESSAGE"
