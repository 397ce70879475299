"""What a caller is told of an item that object storage did not keep: its item's status, never its neighbours'."""

from __future__ import annotations

from google.rpc import code_pb2

from shoal.v1 import inference_pb2
from shoal_common.blobs import BlobDamaged, BlobError, BlobMissing


def status(what: str, error: BlobError | TimeoutError) -> inference_pb2.ItemStatus:
    """BLOB_MISSING, BLOB_DAMAGED (both DATA_LOSS) or BLOB_STORAGE_FAILED (UNAVAILABLE); `what` is item or result."""
    if isinstance(error, BlobMissing):
        code, reason, fate = code_pb2.DATA_LOSS, "BLOB_MISSING", "is not in object storage"
    elif isinstance(error, BlobDamaged):
        code, reason, fate = code_pb2.DATA_LOSS, "BLOB_DAMAGED", "came back from object storage with other bytes"
    else:
        code, reason, fate = code_pb2.UNAVAILABLE, "BLOB_STORAGE_FAILED", "could not be kept: object storage failed"
    message = f"the {what} is too large for the queue, and {fate}; try again"
    return inference_pb2.ItemStatus(code=code, reason=reason, message=message)
