"""Checks of a request as a whole: pure, each refusal naming the field's path, the limit and the size."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from shoal.v1 import inference_pb2
from shoal.view.v1 import view_pb2
from shoal.work.v1 import work_pb2
from shoal_common import errors, limits
from shoal_common.registry_view import RegisteredModel
from shoal_gateway.encode_options import CheckedOptions, OptionChecks, unknown_fields, unknown_value

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


class CheckedRequest(NamedTuple):
    """A request that can be served."""

    model: RegisteredModel
    options: CheckedOptions
    work_class: work_pb2.WorkClass
    items: list[bytes]


def parse(raw: bytes) -> view_pb2.RequestView:
    """The request's view.

    Raises:
        CallError: INVALID_ARGUMENT; too large, or no message at all.
    """
    if len(raw) > limits.MESSAGE_BYTES:
        raise errors.too_large("(message)", len(raw), limits.MESSAGE_BYTES)
    try:
        return view_pb2.RequestView.FromString(raw)
    except DecodeError:
        raise errors.malformed("these bytes are not the method's request message") from None


def check(view: view_pb2.RequestView, models: Models, options: OptionChecks) -> CheckedRequest:
    """Checks everything but the items themselves, which nobody parses on the way.

    Raises:
        CallError: INVALID_ARGUMENT or NOT_FOUND.
    """
    _check_names(view)
    model = models.resolve(view.model)
    if view.adapter:
        raise errors.not_found("adapter", view.adapter)
    work_class = WORK_CLASSES.get(view.priority)
    if work_class is None:
        raise errors.invalid_fields(unknown_value("priority", view.priority, inference_pb2.Priority))
    for field, what in unknown_fields(view, "(message)"):
        raise errors.invalid_field(field, what)
    items = list(view.items)
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
