"""What a call's metadata says to the gateway."""

from __future__ import annotations

from typing import NamedTuple

import grpc

from shoal_common import request_ids, telemetry
from shoal_gateway import auth


class CallMetadata(NamedTuple):
    """The parts of a call's metadata that are read here."""

    request_id: str | bytes | None
    """As the caller sent it, unchecked."""
    traceparent: str | None
    authorization: str | bytes | None


def read(context: grpc.aio.ServicerContext) -> CallMetadata:
    """Reads the caller's metadata."""
    request_id: str | bytes | None = None
    traceparent: str | None = None
    authorization: str | bytes | None = None
    for key, value in context.invocation_metadata() or ():
        if key == request_ids.METADATA_KEY:
            request_id = value
        elif key == telemetry.TRACEPARENT and isinstance(value, str):
            traceparent = value
        elif key == auth.METADATA_KEY:
            authorization = value
    return CallMetadata(request_id, traceparent, authorization)
