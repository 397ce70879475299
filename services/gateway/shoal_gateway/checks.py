"""Checks of a request as a whole: pure, each refusal naming the field's path, the limit and the size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from shoal.v1 import inference_pb2
from shoal.view.v1 import view_pb2
from shoal.work.v1 import work_pb2
from shoal_common import errors, limits
from shoal_common.blobs import Data
from shoal_common.registry_view import RegisteredModel
from shoal_gateway.carving import carve
from shoal_gateway.encode_options import CheckedOptions, OptionChecks, unknown_fields, unknown_value

ITEMS_FIELD = view_pb2.RequestView.ITEMS_FIELD_NUMBER
WORK_CLASSES: dict[int, work_pb2.WorkClass] = {
    inference_pb2.PRIORITY_UNSPECIFIED: work_pb2.WORK_CLASS_INTERACTIVE,
    inference_pb2.PRIORITY_INTERACTIVE: work_pb2.WORK_CLASS_INTERACTIVE,
    inference_pb2.PRIORITY_BULK: work_pb2.WORK_CLASS_BULK,
}


class Models(Protocol):
    """Who knows the models: the registry's view."""

    def resolve(self, name: str) -> RegisteredModel:
        """The model of a name or alias; raises CallError NOT_FOUND."""
        ...


class ParsedRequest(NamedTuple):
    """A request's message; the view holds its items only where they are small."""

    view: view_pb2.RequestView
    items: Sequence[Data]


class CheckedRequest(NamedTuple):
    """A request that can be served."""

    model: RegisteredModel
    options: CheckedOptions
    work_class: work_pb2.WorkClass
    items: Sequence[Data]


def parse(raw: Data) -> ParsedRequest:
    """The request as far as its items, which are parts of `raw` where they are large.

    Raises:
        CallError: INVALID_ARGUMENT; too large, or no message at all.
    """
    if len(raw) > limits.MESSAGE_BYTES:
        raise errors.too_large("(message)", len(raw), limits.MESSAGE_BYTES)
    try:
        if len(raw) > limits.BLOB_ITEM_BYTES and (carved := carve(raw, ITEMS_FIELD)):
            return ParsedRequest(view_pb2.RequestView.FromString(carved.rest), carved.values)
        view = view_pb2.RequestView.FromString(raw)  # pyright: ignore[reportArgumentType] - views are taken too
        return ParsedRequest(view, list(view.items))
    except DecodeError:
        raise errors.malformed("these bytes are not the method's request message") from None


def check(parsed: ParsedRequest, models: Models, options: OptionChecks) -> CheckedRequest:
    """Checks everything but the items themselves, which nobody parses on the way.

    Raises:
        CallError: INVALID_ARGUMENT or NOT_FOUND.
    """
    view, items = parsed
    _check_names(view)
    model = models.resolve(view.model)
    if view.adapter:
        raise errors.not_found("adapter", view.adapter)
    work_class = WORK_CLASSES.get(view.priority)
    if work_class is None:
        raise errors.invalid_fields(unknown_value("priority", view.priority, inference_pb2.Priority))
    for field, what in unknown_fields(view, "(message)"):
        raise errors.invalid_field(field, what)
    if not items:
        raise errors.invalid_field("items", "is empty; at least 1 item is needed")
    if len(items) > limits.REQUEST_ITEMS:
        raise errors.too_large("items", len(items), limits.REQUEST_ITEMS, "items")
    return CheckedRequest(model, options.check(view.options, model), work_class, items)


def check_model_name(name: str) -> None:
    """Bounds what is looked up: near names of an endless one would take seconds to find.

    Raises:
        CallError: INVALID_ARGUMENT.
    """
    if not name:
        raise errors.invalid_field("model", "is empty; name a registered model or an alias")
    if len(name) > limits.MODEL_NAME_CHARS:
        raise errors.too_large("model", len(name), limits.MODEL_NAME_CHARS, "characters")


def _check_names(view: view_pb2.RequestView) -> None:
    check_model_name(view.model)
    if len(view.adapter) > limits.MODEL_NAME_CHARS:
        raise errors.too_large("adapter", len(view.adapter), limits.MODEL_NAME_CHARS, "characters")
    key_bytes = len(view.idempotency_key.encode())
    if key_bytes > limits.IDEMPOTENCY_KEY_BYTES:
        raise errors.too_large("idempotency_key", key_bytes, limits.IDEMPOTENCY_KEY_BYTES)
