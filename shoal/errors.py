"""Every exception the client raises of its own.

ShoalError
├── InvalidText           a text that cannot be sent (also a ValueError); raised before any call
├── ItemsFailed           the call went well, some of its items did not
└── CallError             the call failed: .code, .reason, .request_id
    ├── InvalidRequest    INVALID_ARGUMENT: .violations names the fields
    ├── NotFound          NOT_FOUND: .near holds similar names
    ├── Overloaded        RESOURCE_EXHAUSTED: .retry_after_s
    ├── Unavailable       UNAVAILABLE: .retry_after_s
    ├── DeadlineExceeded  DEADLINE_EXCEEDED (also a TimeoutError)
    ├── Unauthenticated   UNAUTHENTICATED: no token, or one the mesh doesn't know
    ├── PermissionDenied  PERMISSION_DENIED: the token lacks the scope
    └── InternalError     INTERNAL: the mesh's fault; .request_id finds it in its logs

Other gRPC codes raise CallError itself. Keyword values that no mesh would take raise plain ValueError,
and values of a wrong type TypeError, before any call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from shoal.results import ItemError

_NAMED_ITEMS = 3


class ShoalError(Exception):
    """Base of all errors of this client."""


class InvalidText(ShoalError, ValueError):
    """A text that cannot be sent: not valid Unicode, or larger than any request may be.

    `index` is its place in the list.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"texts[{index}] {problem}")
        self.index = index


class ItemsFailed(ShoalError):
    """Some items failed; the others are in `vectors`.

    `errors` maps each failed index to its ItemError. `vectors` is the array that the call would have
    returned: rows of failed items are NaN for float types and zero for int8 and binary. If every item
    failed, its rows may have length 0.
    """

    def __init__(self, errors: dict[int, ItemError], vectors: np.ndarray[Any, Any]) -> None:
        named = [f"texts[{index}]: {errors[index]}" for index in sorted(errors)[:_NAMED_ITEMS]]
        more = len(errors) - len(named)
        rest = f"; and {more} more" if more else ""
        super().__init__(f"{len(errors)} of {max(len(vectors), 1)} items failed: {'; '.join(named)}{rest}")
        self.errors = errors
        self.vectors = vectors


class CallError(ShoalError):
    """A call failed as a whole.

    `code` is the gRPC status code's name, for instance "NOT_FOUND". `reason` is the mesh's stable name
    of the cause (google.rpc.ErrorInfo), and `request_id` its name of the request; both may be empty.
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN", reason: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.request_id = request_id


class FieldViolation(NamedTuple):
    """What is wrong with one field of a request."""

    field: str
    description: str


class InvalidRequest(CallError):
    """The request is wrong, and will be however often it is sent."""

    violations: tuple[FieldViolation, ...] = ()


class NotFound(CallError):
    """No such model or adapter."""

    near: tuple[str, ...] = ()


class Overloaded(CallError):
    """The mesh refused the work: busy, over quota, or the request is too large.

    `retry_after_s` says when it may be taken; None if trying again is of no use.
    """

    retry_after_s: float | None = None


class Unavailable(CallError):
    """No mesh answers, or it cannot serve the model now."""

    retry_after_s: float | None = None
    refused: bool = False
    """No connection could be made, so the request was not sent."""


class DeadlineExceeded(CallError, TimeoutError):
    """No answer within the timeout. The mesh drops what it had not begun."""


class Unauthenticated(CallError):
    """The mesh wants a token, or doesn't know this one."""


class PermissionDenied(CallError):
    """The token doesn't allow this."""


class InternalError(CallError):
    """The mesh failed."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (request id {self.request_id})" if self.request_id else text
