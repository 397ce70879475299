"""How a CallError ends a call: under the request's id, within what HTTP/2 headers may hold."""

from __future__ import annotations

from urllib.parse import quote

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from shoal_common import errors, logs
from shoal_common.request_ids import METADATA_KEY

log = logs.get("calls")
HEADER_BYTES = 7 * 1024
"""gRPC clients refuse metadata above 8 KiB by default; a status stands in it twice."""
TEXT_CHARS = 200
"""What is left of a text before details go."""


async def abort(context: grpc.aio.ServicerContext, error: errors.CallError, request_id: str) -> None:
    """Ends the call with the error; raises, as grpc's abort does."""
    status = rpc_status.to_status(fitted(error.status(request_id)))
    await context.abort(status.code, status.details, (*status.trailing_metadata, (METADATA_KEY, request_id)))


def typed(error: Exception, request_id: str, **about: str) -> errors.CallError:
    """The error itself if it is typed; INTERNAL for anything else, told in full only to the log."""
    if isinstance(error, errors.CallError):
        return error
    log.error("request failed", request_id=request_id, exc_info=error, **about)
    return errors.internal()


def fitted(status: status_pb2.Status) -> status_pb2.Status:
    """The status with its text cut, then without details, until it fits into a call's trailing metadata.

    ErrorInfo, the first detail, and RequestInfo, the last, stay longest.
    """
    while _header_bytes(status) > HEADER_BYTES:
        if len(status.message) > TEXT_CHARS:
            status.message = status.message[: max(TEXT_CHARS, len(status.message) // 2) - 3] + "..."
        elif len(status.details) > 1:
            del status.details[-2]
        else:
            break
    return status


def _header_bytes(status: status_pb2.Status) -> int:
    """The message percent-encoded and the whole in base64."""
    return len(quote(status.message)) + status.ByteSize() * 4 // 3
