"""The name of a request in answers and log lines: the caller's own, or a random one."""

from __future__ import annotations

import random
import re

import grpc

METADATA_KEY = "x-request-id"
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def new() -> str:
    """An id that is nowhere else: 128 random bits. No secret."""
    return f"{random.getrandbits(128):032x}"


def request_id(asked: object) -> str:
    """What the caller asked for if it is safe to be logged and sent on, else a new id."""
    return asked if isinstance(asked, str) and _SAFE.fullmatch(asked) else new()


def of_call(context: grpc.aio.ServicerContext) -> str:
    """The name of a call, by its metadata."""
    return request_id(dict(context.invocation_metadata() or ()).get(METADATA_KEY))
