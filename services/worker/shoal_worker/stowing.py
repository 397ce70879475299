"""Results that are too large for a message: put into object storage, and named in their place."""

from __future__ import annotations

import asyncio
import secrets

from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from shoal.v1 import inference_pb2
from shoal.view.v1 import view_pb2
from shoal.work.v1 import work_pb2
from shoal_common import blob_faults, limits, logs
from shoal_common.blobs import RESULTS, Blob, BlobError, Blobs, digest, key_of

log = logs.get("stowing")
OTHERS_BYTES = 4 * limits.KIB
"""What a message of one item's result holds beside it."""


def is_needed(result: work_pb2.UnitResult) -> bool:
    """Whether one of the items' results is too large for a message."""
    return any(len(one) > limits.RESULT_MESSAGE_BYTES - OTHERS_BYTES for one in result.results)


class Stowing:
    """Writes the blobs of results; the gateway removes them."""

    def __init__(self, blobs: Blobs | None) -> None:
        self._blobs = blobs

    async def stow(self, result: work_pb2.UnitResult) -> None:
        """Puts large items' results into blobs; one that cannot be kept becomes that item's error."""
        for index, one in enumerate(result.results):
            if len(one) <= limits.RESULT_MESSAGE_BYTES - OTHERS_BYTES:
                continue
            if self._blobs is None or len(one) > limits.MEDIA_ITEM_BYTES:
                limit = limits.MEDIA_ITEM_BYTES if self._blobs else limits.RESULT_MESSAGE_BYTES - OTHERS_BYTES
                message = f"the item's result has {len(one):,} bytes; at most {limit:,} can be sent here"
                status = inference_pb2.ItemStatus(
                    code=code_pb2.RESOURCE_EXHAUSTED, reason="RESULT_TOO_LARGE", message=message
                )
                result.results[index] = _instead(one, status)
                continue
            # Its own name for each try: the results of two may differ, and the gateway reads one of them.
            key = key_of(RESULTS, result.unit_id, f"{index}.{secrets.token_hex(8)}")
            try:
                async with asyncio.timeout(limits.BLOB_TRANSFER_S):
                    await self._blobs.put(key, one)
            except (BlobError, TimeoutError) as error:
                log.error("a result could not be written", unit=result.unit_id, key=key, error=str(error))
                result.results[index] = _instead(one, blob_faults.status("result", error))
                continue
            result.blobs.append(Blob(index, key, len(one), await digest(one)).message())
            result.results[index] = b""


def _instead(result: bytes, status: inference_pb2.ItemStatus) -> bytes:
    """A result that keeps what every result begins with, and has an error in the place of its values."""
    try:
        view = view_pb2.ResultView.FromString(result)
    except DecodeError:
        view = view_pb2.ResultView()
    view.DiscardUnknownFields()
    view.status = status.SerializeToString()
    return view.SerializeToString()
