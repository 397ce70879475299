"""Turns gRPC statuses and their google.rpc details into the exceptions of errors.py."""

from __future__ import annotations

from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from shoal import errors

_CLASSES: dict[str, type[errors.CallError]] = {
    "INVALID_ARGUMENT": errors.InvalidRequest,
    "NOT_FOUND": errors.NotFound,
    "RESOURCE_EXHAUSTED": errors.Overloaded,
    "UNAVAILABLE": errors.Unavailable,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "PERMISSION_DENIED": errors.PermissionDenied,
    "INTERNAL": errors.InternalError,
}
_CONNECT_FAILURES = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_LOST_CALL = "Internal error from Core"
"""grpc.aio's own words when a write finds its call gone; they hide the status that ended the call."""
_REQUEST_ID_KEY = "x-request-id"
_NEAR_KEY = "near"

M = TypeVar("M", bound=Message)


def code_name(code: int) -> str:
    """The name of a google.rpc.Code, for instance 5 → "NOT_FOUND"; a number outside it as digits."""
    return code_pb2.Code.Name(code) if code in code_pb2.Code.values() else str(code)  # type: ignore[arg-type]


def from_rpc_error(error: grpc.aio.AioRpcError, target: str) -> errors.CallError:
    """The exception for a call to `target` that ended with `error`."""
    text = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and text.startswith(_CONNECT_FAILURES):
        refused = errors.Unavailable(f"no mesh answers at {target} (is `shoal up` running?)", code="UNAVAILABLE")
        refused.refused = True
        return refused
    if error.code() is grpc.StatusCode.INTERNAL and text.startswith(_LOST_CALL):
        return errors.Unavailable(f"the call to {target} broke off", code="UNAVAILABLE")
    request_id = ""
    for key, value in error.trailing_metadata() or ():
        if key == _REQUEST_ID_KEY and isinstance(value, str):
            request_id = value
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
    except (ValueError, DecodeError):  # details that contradict the call are worth nothing
        status = None
    if status is None:
        status = status_pb2.Status(code=error.code().value[0], message=text)
    return from_status(status, request_id)


def from_status(status: status_pb2.Status, request_id: str = "") -> errors.CallError:
    """The exception for a status; its own RequestInfo goes before `request_id`."""
    code = code_name(status.code)
    info = _detail(status, error_details_pb2.ErrorInfo())
    request = _detail(status, error_details_pb2.RequestInfo())
    error = _CLASSES.get(code, errors.CallError)(
        status.message or code,
        code=code,
        reason=info.reason if info else "",
        request_id=(request.request_id if request else "") or request_id,
    )
    match error:
        case errors.InvalidRequest():
            bad = _detail(status, error_details_pb2.BadRequest())
            violations = bad.field_violations if bad else ()
            error.violations = tuple(errors.FieldViolation(each.field, each.description) for each in violations)
        case errors.NotFound() if info:
            names = (name.strip() for name in info.metadata.get(_NEAR_KEY, "").split(","))
            error.near = tuple(name for name in names if name)
        case errors.Overloaded() | errors.Unavailable():
            retry = _detail(status, error_details_pb2.RetryInfo())
            error.retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9 if retry else None
    return error


def _detail(status: status_pb2.Status, into: M) -> M | None:
    for detail in status.details:
        try:
            if detail.Unpack(into):
                return into
        except DecodeError:
            return None
    return None
