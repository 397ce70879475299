"""Results of items that cannot be served: the gateway writes them itself, as the sidecar would."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from shoal.v1 import inference_pb2
from shoal_common import blob_faults, limits
from shoal_common.blobs import BlobError, Data


def faults(items: Sequence[Data], model: str, *, takes_media: bool, has_storage: bool) -> dict[int, bytes]:
    """Serialized EncodeResults by index, for items that are too large to be served.

    Only items that are longer than the longest text are parsed, and of those none that media of the model may have:
    all others fit whatever they hold, and the sidecar tells texts from media. Items of more than ITEM_BYTES need
    object storage.
    """
    media_bytes = limits.MEDIA_ITEM_BYTES if takes_media and has_storage else limits.ITEM_BYTES
    return {
        index: fault.SerializeToString()
        for index, item in enumerate(items)
        if len(item) > limits.TEXT_BYTES
        and not (takes_media and len(item) <= media_bytes)
        and (fault := _fault(item, model, takes_media, media_bytes))
    }


def lost(item: Data, what: str, error: BlobError | TimeoutError) -> bytes:
    """The result of an item of which object storage did not keep the item, or the result."""
    return inference_pb2.EncodeResult(status=blob_faults.status(what, error), id=_id(item)).SerializeToString()


def _fault(raw: Data, model: str, takes_media: bool, media_bytes: int) -> inference_pb2.EncodeResult | None:
    try:
        item = inference_pb2.Item.FromString(raw)  # pyright: ignore[reportArgumentType] - views are taken too
    except DecodeError:
        return _result("", "ITEM_MALFORMED", "these bytes are not an Item with UTF-8 strings")
    id_bytes = len(item.id.encode())
    if id_bytes > limits.ITEM_ID_BYTES:
        return _result("", "ITEM_ID_TOO_LONG", _over("the id", id_bytes, limits.ITEM_ID_BYTES))
    if item.HasField("media"):
        if not takes_media:
            kind = item.media.mime_type[:100] or "unnamed type"
            return _result(item.id, "ITEM_MEDIA_UNSUPPORTED", f"the model {model} takes texts, not media of {kind}")
        data_bytes = len(item.media.data)
        if data_bytes > limits.MEDIA_BYTES:
            return _result(item.id, "ITEM_TOO_LARGE", _over("the media", data_bytes, limits.MEDIA_BYTES))
        if len(raw) > media_bytes:
            return _result(item.id, "ITEM_TOO_LARGE", _over("the item", len(raw), media_bytes))
        return None
    text_bytes = len(item.text.encode())
    if text_bytes > limits.TEXT_BYTES:
        return _result(item.id, "ITEM_TOO_LARGE", _over("the text", text_bytes, limits.TEXT_BYTES))
    if len(raw) > limits.ITEM_BYTES:
        return _result(item.id, "ITEM_TOO_LARGE", _over("the item", len(raw), limits.ITEM_BYTES))
    return None


def _id(raw: Data) -> str:
    """An item's id, as far as it can be read and repeated."""
    try:
        item_id = inference_pb2.Item.FromString(raw).id  # pyright: ignore[reportArgumentType] - views are taken too
    except DecodeError:
        return ""
    return item_id if len(item_id.encode()) <= limits.ITEM_ID_BYTES else ""


def _over(what: str, size: int, limit: int) -> str:
    return f"{what} has {size:,} bytes; at most {limit:,} are allowed"


def _result(item_id: str, reason: str, message: str) -> inference_pb2.EncodeResult:
    status = inference_pb2.ItemStatus(code=code_pb2.INVALID_ARGUMENT, message=message, reason=reason)
    return inference_pb2.EncodeResult(status=status, id=item_id)
