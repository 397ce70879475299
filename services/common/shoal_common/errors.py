"""Every error that a caller can see: one function a kind, each with its code, reason and details.

A `CallError` ends a call (or one request of a stream); an item's fault never becomes one. Reasons are
stable, upper-case and documented here: clients may branch on them.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable

from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from shoal_common import limits

DOMAIN = "shoal"
NEAR_CANDIDATES = 100
"""Names that are compared closely; a thousand would take 16 ms of everybody's time."""


class CallError(Exception):
    """A typed end of a call: a google.rpc.Code, a stable reason, a text and google.rpc details."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *details: Message,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = _cut(message, limits.ERROR_TEXT_BYTES)
        info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata or {})
        self.details: tuple[Message, ...] = (info, *details)

    def status(self, request_id: str = "") -> status_pb2.Status:
        """The error as google.rpc.Status, with the request's id where one is known."""
        details = list(self.details)
        if request_id:
            details.append(error_details_pb2.RequestInfo(request_id=request_id))
        return status_pb2.Status(code=self.code, message=self.message, details=[_packed(d) for d in details])


def from_status(status: status_pb2.Status) -> CallError:
    """The error that another process wrote as google.rpc.Status."""
    reason, metadata, rest = "UNKNOWN", {}, []
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif not detail.Unpack(error_details_pb2.RequestInfo()):
            rest.append(detail)
    error = CallError(status.code, reason, status.message, metadata=metadata)
    error.details = (*error.details, *rest)
    return error


def invalid_fields(violations: Iterable[tuple[str, str]], reason: str = "INVALID_FIELD") -> CallError:
    """INVALID_ARGUMENT naming each field's path and what is wrong with it."""
    bad = error_details_pb2.BadRequest()
    for field, what in violations:
        named = bad.FieldViolation(field=_cut(field, limits.ERROR_FIELD_BYTES), description=_cut(what, 1000))
        if bad.ByteSize() + named.ByteSize() > limits.ERROR_FIELDS_BYTES:
            break
        bad.field_violations.append(named)
    text = "; ".join(f"{each.field}: {each.description}" for each in bad.field_violations)
    return CallError(code_pb2.INVALID_ARGUMENT, reason, text, bad)


def invalid_field(field: str, what: str, reason: str = "INVALID_FIELD") -> CallError:
    """INVALID_ARGUMENT naming one field's path."""
    return invalid_fields([(field, what)], reason)


def malformed(what: str) -> CallError:
    """INVALID_ARGUMENT for bytes that are not the message they should be."""
    return invalid_field("(message)", what, "MALFORMED_MESSAGE")


def too_large(field: str, size: int, limit: int, unit: str = "bytes") -> CallError:
    """INVALID_ARGUMENT naming the limit and the size."""
    return invalid_field(field, f"has {size:,} {unit}; at most {limit:,} are allowed", "LIMIT_EXCEEDED")


def not_found(kind: str, name: str, known: Iterable[str] = ()) -> CallError:
    """NOT_FOUND with near names; `kind` is model, adapter, alias, blob, ..."""
    near = _near(name[: limits.MODEL_NAME_CHARS], known)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return CallError(
        code_pb2.NOT_FOUND,
        f"{kind.upper()}_NOT_FOUND",
        f"no {kind} {_cut(name, 300)!r} is registered{hint}",
        error_details_pb2.ResourceInfo(resource_type=kind, resource_name=_cut(name, 300)),
        metadata={"near": ",".join(near)},
    )


def overloaded(message: str, retry_s: float, reason: str = "OVERLOADED") -> CallError:
    """RESOURCE_EXHAUSTED with the time after which a retry may fit."""
    return CallError(code_pb2.RESOURCE_EXHAUSTED, reason, message, _retry(retry_s))


def tenant_over_share(model: str, tenant: str, queued_ms: float, most_ms: float, retry_s: float) -> CallError:
    """RESOURCE_EXHAUSTED: a tenant's work that waits for a model is all that its share of it allows."""
    what = f"has {queued_ms:,.0f} ms of work waiting for the model {model}; its share allows {most_ms:,.0f} ms"
    quota = error_details_pb2.QuotaFailure()
    quota.violations.add(subject=f"tenant:{tenant}", description=what)
    return CallError(
        code_pb2.RESOURCE_EXHAUSTED,
        "TENANT_OVER_SHARE",
        f"the tenant {tenant} {what}; try again in {retry_s:.1f} s",
        _retry(retry_s),
        quota,
        metadata={"tenant": tenant, "queued_ms": f"{queued_ms:.0f}", "limit_ms": f"{most_ms:.0f}"},
    )


def unauthenticated(reason: str, message: str) -> CallError:
    """UNAUTHENTICATED: nobody knows who calls."""
    return CallError(code_pb2.UNAUTHENTICATED, reason, message)


def scope_missing(scope: str, tenant: str) -> CallError:
    """PERMISSION_DENIED naming the scope that the caller's token lacks."""
    return CallError(
        code_pb2.PERMISSION_DENIED,
        "SCOPE_MISSING",
        f"this needs a token with the scope {scope}, which this one of tenant {tenant} does not have",
        metadata={"scope": scope, "tenant": tenant},
    )


def unavailable(
    message: str, retry_s: float, reason: str = "UNAVAILABLE", metadata: dict[str, str] | None = None
) -> CallError:
    """UNAVAILABLE with the time after which a retry may succeed."""
    return CallError(code_pb2.UNAVAILABLE, reason, message, _retry(retry_s), metadata=metadata)


def failed_precondition(reason: str, message: str) -> CallError:
    """FAILED_PRECONDITION: it will not succeed until somebody changes something."""
    return CallError(code_pb2.FAILED_PRECONDITION, reason, message)


def deadline_exceeded(message: str) -> CallError:
    """DEADLINE_EXCEEDED: the work is not run, or its answer is not sent."""
    return CallError(code_pb2.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", message)


def internal(message: str = "an internal error; the request id finds it in the logs") -> CallError:
    """INTERNAL: our fault. The text tells nothing of the inside."""
    return CallError(code_pb2.INTERNAL, "INTERNAL", message)


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names that are alike, sought among those with the same letters."""
    letters = set(name)

    def unlike(other: str) -> tuple[int, int]:
        return len(letters.symmetric_difference(other)), abs(len(other) - len(name))

    return difflib.get_close_matches(name, heapq.nsmallest(NEAR_CANDIDATES, known, unlike), n=3, cutoff=0.6)


def _retry(seconds: float) -> error_details_pb2.RetryInfo:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(max(1, int(seconds * 1000)))
    return retry


def _packed(detail: Message) -> any_pb2.Any:
    if isinstance(detail, any_pb2.Any):
        return detail
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _cut(text: str, limit_bytes: int) -> str:
    raw = text.encode(errors="replace")
    return raw.decode() if len(raw) <= limit_bytes else raw[: limit_bytes - 3].decode(errors="ignore") + "..."
