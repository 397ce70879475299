"""Items that no unit can hold get a result of their own, with their id and the reason."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2

from shoal.v1 import inference_pb2 as pb
from shoal_common import limits
from shoal_common.blobs import BlobDamaged, BlobError, BlobMissing, BlobsAway
from shoal_gateway.item_faults import faults, lost

LONGEST = "a" * limits.TEXT_BYTES


def fault(item: pb.Item | bytes, takes_media: bool = False, has_storage: bool = True) -> pb.EncodeResult | None:
    raw = item if isinstance(item, bytes) else item.SerializeToString()
    found = faults([b"", memoryview(raw), b"\xff"], "minilm", takes_media=takes_media, has_storage=has_storage)
    assert found == faults([b"", raw, b"\xff"], "minilm", takes_media=takes_media, has_storage=has_storage)
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


def media(size: int, **fields: str) -> pb.Item:
    return pb.Item(id="m", media=pb.Media(**({"mime_type": "image/png"} | fields), data=bytes(size)))


@pytest.mark.parametrize("size", [1, limits.TEXT_BYTES, limits.ITEM_BYTES + 1, limits.MEDIA_BYTES])
def test_media_for_a_model_that_takes_them(size: int) -> None:
    assert fault(media(size), takes_media=True) is None


def test_media_that_are_too_large() -> None:
    for size in (limits.MEDIA_BYTES + 1, limits.MEDIA_ITEM_BYTES + 1):
        result = fault(media(size), takes_media=True)
        if size <= limits.MEDIA_ITEM_BYTES - 100:
            assert result is None, "the sidecar says so of media that only just do not fit"
        else:
            assert result and (result.id, result.status.reason) == ("m", "ITEM_TOO_LARGE")
            assert f"{size:,}" in result.status.message and f"{limits.MEDIA_BYTES:,}" in result.status.message
    result = fault(media(limits.MEDIA_BYTES, mime_type="x" * limits.MIB), takes_media=True)
    assert result and result.status.reason == "ITEM_TOO_LARGE"


def test_media_without_object_storage_have_a_texts_size() -> None:
    assert fault(media(limits.TEXT_BYTES), takes_media=True, has_storage=False) is None
    result = fault(media(2 * limits.MIB), takes_media=True, has_storage=False)
    assert result and (result.id, result.status.reason) == ("m", "ITEM_TOO_LARGE")
    assert f"{limits.ITEM_BYTES:,}" in result.status.message


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (BlobMissing("key"), code_pb2.DATA_LOSS, "BLOB_MISSING"),
        (BlobDamaged("key"), code_pb2.DATA_LOSS, "BLOB_DAMAGED"),
        (BlobsAway("no space"), code_pb2.UNAVAILABLE, "BLOB_STORAGE_FAILED"),
        (TimeoutError(), code_pb2.UNAVAILABLE, "BLOB_STORAGE_FAILED"),
    ],
)
def test_what_storage_did_not_keep(error: BlobError | TimeoutError, code: int, reason: str) -> None:
    for raw, item_id in ((media(9).SerializeToString(), "m"), (b"\xff", "")):
        result = pb.EncodeResult.FromString(lost(memoryview(raw), "item", error))
        assert (result.id, result.status.code, result.status.reason) == (item_id, code, reason)
        assert "key" not in result.status.message and "no space" not in result.status.message


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
