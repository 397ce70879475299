"""The name of a request in answers and log lines: the caller's own, or a random one."""

from __future__ import annotations

import re
import uuid

import grpc

METADATA_KEY = "x-request-id"
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def request_id(asked: object) -> str:
    """What the caller asked for if it is safe to be logged and sent on, else a new id."""
    return asked if isinstance(asked, str) and _SAFE.fullmatch(asked) else uuid.uuid4().hex


def of_call(context: grpc.aio.ServicerContext) -> str:
    """The name of a call, by its metadata."""
    return request_id(dict(context.invocation_metadata() or ()).get(METADATA_KEY))
