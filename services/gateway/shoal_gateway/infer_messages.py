"""Messages of the Infer stream, from and to bytes: pure."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from shoal.view.v1 import view_pb2
from shoal_common import errors, limits
from shoal_common.blobs import Data
from shoal_common.errors import CallError
from shoal_gateway.carving import carve
from shoal_gateway.encode_options import unknown_fields

ENCODE_FIELD = view_pb2.InferRequestView.ENCODE_FIELD_NUMBER
ECHOED_ID_BYTES = 4 * limits.KIB


class InferRequest(NamedTuple):
    """A message of the stream."""

    request_id: bytes
    """As far as an answer may repeat it: always UTF-8."""
    deadline_ms: int
    encode: Data
    error: CallError | None
    """Why it cannot be served."""


def parse(raw: bytes) -> InferRequest:
    """Reads a message; one that cannot be served says why."""
    try:
        view, encode = _view(raw)
    except DecodeError:
        return InferRequest(b"", 0, b"", errors.malformed("these bytes are not an InferRequest"))
    error = _fault(view)
    if error is None and encode is None:
        error = errors.invalid_field("request", "holds nothing to compute; set encode")
    if error is None and encode is not None:
        return InferRequest(view.request_id, view.deadline_ms, encode, None)
    return InferRequest(_echo(view.request_id), 0, b"", error)


def answered(request_id: bytes, response: bytes) -> bytes:
    """The InferResponse with an EncodeResponse."""
    return view_pb2.InferResponseView(request_id=request_id, last=True, encode=response).SerializeToString()


def refused(request_id: bytes, error: CallError, name: str) -> bytes:
    """The InferResponse with an error; `name` finds the request in the logs."""
    status = error.status(name).SerializeToString()
    return view_pb2.InferResponseView(request_id=request_id, last=True, error=status).SerializeToString()


def _view(raw: bytes) -> tuple[view_pb2.InferRequestView, Data | None]:
    """The message, and its EncodeRequest, which the view holds only where it is small."""
    if len(raw) > limits.BLOB_ITEM_BYTES and (carved := carve(raw, ENCODE_FIELD)):
        return view_pb2.InferRequestView.FromString(carved.rest), carved.values[-1] if carved.values else None
    view = view_pb2.InferRequestView.FromString(raw)
    return view, view.encode if view.HasField("encode") else None


def _fault(view: view_pb2.InferRequestView) -> CallError | None:
    if not view.request_id:
        return errors.invalid_field("request_id", "is empty; answers are matched by it")
    if len(view.request_id) > limits.REQUEST_ID_BYTES:
        return errors.too_large("request_id", len(view.request_id), limits.REQUEST_ID_BYTES)
    if not _is_utf8(view.request_id):
        return errors.invalid_field("request_id", "is not valid UTF-8", "MALFORMED_MESSAGE")
    for field, what in unknown_fields(view, "request"):
        return errors.invalid_field(field, what)
    return None


def _echo(request_id: bytes) -> bytes:
    return request_id if len(request_id) <= ECHOED_ID_BYTES and _is_utf8(request_id) else b""


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
