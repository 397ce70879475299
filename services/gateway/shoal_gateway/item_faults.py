"""Results of items that cannot go on the queue: the gateway writes them itself, as the sidecar would."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from shoal.v1 import inference_pb2
from shoal_common import limits


def faults(items: Sequence[bytes], model: str) -> dict[int, bytes]:
    """Serialized EncodeResults by index, for items that are too large for a unit.

    Only items that are longer than the longest text are parsed: all others fit whatever they hold.
    """
    return {
        index: fault.SerializeToString()
        for index, item in enumerate(items)
        if len(item) > limits.TEXT_BYTES and (fault := _fault(item, model))
    }


def _fault(raw: bytes, model: str) -> inference_pb2.EncodeResult | None:
    try:
        item = inference_pb2.Item.FromString(raw)
    except DecodeError:
        return _result("", "ITEM_MALFORMED", "these bytes are not an Item with UTF-8 strings")
    id_bytes = len(item.id.encode())
    if id_bytes > limits.ITEM_ID_BYTES:
        return _result("", "ITEM_ID_TOO_LONG", _over("the id", id_bytes, limits.ITEM_ID_BYTES))
    if item.HasField("media"):
        kind = item.media.mime_type[:100] or "unnamed type"
        return _result(item.id, "ITEM_MEDIA_UNSUPPORTED", f"the model {model} takes texts, not media of {kind}")
    text_bytes = len(item.text.encode())
    if text_bytes > limits.TEXT_BYTES:
        return _result(item.id, "ITEM_TOO_LARGE", _over("the text", text_bytes, limits.TEXT_BYTES))
    if len(raw) > limits.ITEM_BYTES:
        return _result(item.id, "ITEM_TOO_LARGE", _over("the item", len(raw), limits.ITEM_BYTES))
    return None


def _over(what: str, size: int, limit: int) -> str:
    return f"{what} has {size:,} bytes; at most {limit:,} are allowed"


def _result(item_id: str, reason: str, message: str) -> inference_pb2.EncodeResult:
    status = inference_pb2.ItemStatus(code=code_pb2.INVALID_ARGUMENT, message=message, reason=reason)
    return inference_pb2.EncodeResult(status=status, id=item_id)
