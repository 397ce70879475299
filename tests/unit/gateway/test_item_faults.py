"""Items that no unit can hold get a result of their own, with their id and the reason."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2

from shoal.v1 import inference_pb2 as pb
from shoal_common import limits
from shoal_gateway.item_faults import faults

LONGEST = "a" * limits.TEXT_BYTES


def fault(item: pb.Item | bytes) -> pb.EncodeResult | None:
    raw = item if isinstance(item, bytes) else item.SerializeToString()
    found = faults([b"", raw, b"\xff"], "minilm")
    assert set(found) <= {1}, "small items are nobody's business here"
    if not found:
        return None
    result = pb.EncodeResult.FromString(found[1])
    assert result.status.code == code_pb2.INVALID_ARGUMENT and not result.HasField("dense")
    return result


def test_the_longest_text_with_the_longest_id_goes_on_the_queue() -> None:
    item = pb.Item(id="i" * limits.ITEM_ID_BYTES, text=LONGEST)
    assert len(item.SerializeToString()) <= limits.ITEM_BYTES
    assert fault(item) is None


@pytest.mark.parametrize("text", [LONGEST + "a", "é" * (limits.TEXT_BYTES // 2) + "a"])
def test_one_byte_more(text: str) -> None:
    result = fault(pb.Item(id="x", text=text))
    assert result and (result.id, result.status.reason) == ("x", "ITEM_TOO_LARGE")
    assert "1,048,577" in result.status.message and "1,048,576" in result.status.message


def test_media_for_a_text_model() -> None:
    result = fault(pb.Item(id="m", media=pb.Media(mime_type="image/png", data=bytes(2 * limits.MIB))))
    assert result and (result.id, result.status.reason) == ("m", "ITEM_MEDIA_UNSUPPORTED")
    assert "image/png" in result.status.message


def test_bad_utf8() -> None:
    raw = pb.Item(text=LONGEST + "a").SerializeToString()[:-1] + b"\xff"
    result = fault(raw)
    assert result and result.status.reason == "ITEM_MALFORMED"


def test_an_endless_id() -> None:
    result = fault(pb.Item(id="i" * limits.ITEM_BYTES, text="a"))
    assert result and result.status.reason == "ITEM_ID_TOO_LONG" and not result.id
    assert len(result.SerializeToString()) < 200


def test_padding_that_nobody_knows() -> None:
    padding = bytes(limits.ITEM_BYTES)
    raw = pb.Item(id="p", text="a").SerializeToString() + b"\x7a" + b"\xc0\x82\x40" + padding
    assert fault(raw) is not None
