"""What becomes of a unit at the moment it comes into hand: pulled from the queue, or granted by the sidecar."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from google.rpc import code_pb2

from shoal.sidecar.v1 import sidecar_pb2
from shoal.work.v1 import work_pb2
from shoal_common import blobs, lanes, limits, unit_form
from shoal_common.blobs import Blob
from shoal_common.errors import CallError
from shoal_worker.decisions.unit import HeldUnit
from shoal_worker.delivery import Delivery, Pulled, parse
from shoal_worker.held import Held

DELIVERY_LIMIT = "DELIVERY_LIMIT"


class Fate(Enum):
    """What to do with it."""

    TAKE = "serve it"
    KNOWN = "in hand already: its newer ack subject was noted"
    ACK = "nobody waits for it, or it was answered before: ack it"
    DEAD = "it can never be served: to the dead letters"


@dataclass(slots=True)
class Judgement:
    """A fate and what it needs."""

    fate: Fate
    unit: HeldUnit | None = None
    """Set for TAKE and ACK, and for DEAD where somebody can be answered."""
    reason: str = ""
    error: CallError | None = None
    """Set for DEAD: what the caller is told."""


_KNOWN = Judgement(Fate.KNOWN)


def judge(pulled: Pulled, held: Held, now_s: float, broker_s: float) -> Judgement:
    """Reads a message; `now_s` is the monotonic clock and `broker_s` the broker's, at one moment."""
    message = unit_form.parse(pulled.data)
    if message is None:
        return _malformed(None, unit_form.UNANSWERABLE)
    unit = _held(message, pulled.delivery, pulled.data, now_s, broker_s)
    unit.traceparent = pulled.traceparent
    known = held.get(unit.id)
    if known is not None:
        known.ack_subject = unit.ack_subject
        return _KNOWN
    if reason := unwanted(unit, held, now_s):
        return Judgement(Fate.ACK, unit, reason)
    if fault := unit_form.fault(message):
        return _malformed(unit, fault)
    if unit.deliveries > limits.DELIVERY_LIMIT:
        error = CallError(
            code_pb2.INTERNAL,
            DELIVERY_LIMIT,
            f"given up after {limits.DELIVERY_LIMIT} deliveries that nobody finished: "
            "the input may bring the runtime down",
        )
        return Judgement(Fate.DEAD, unit, DELIVERY_LIMIT, error)
    return Judgement(Fate.TAKE, unit)


def granted(grant: sidecar_pb2.GrantedUnit, now_s: float, broker_s: float) -> HeldUnit | None:
    """A unit that the sidecar has tokenized before; None when its header or ack subject cannot be read.

    Nothing tells when it was pulled: it counts as pulled when it was published.
    """
    message = unit_form.parse(grant.header)
    try:
        delivery = parse(grant.ack_subject)
    except ValueError:
        return None
    if message is None:
        return None
    unit = _held(message, delivery, b"", now_s, broker_s)
    unit.pulled_s -= max(0.0, broker_s - delivery.published_s)
    unit.deliveries = grant.deliveries
    unit.traceparent = grant.traceparent or None
    unit.is_counted = True
    unit.items, unit.tokens, unit.squared_tokens = grant.items, grant.tokens, grant.squared_tokens
    return unit


def unwanted(unit: HeldUnit, held: Held, now_s: float) -> str:
    """Why a unit that came into hand need not be run; empty when it must be."""
    if held.is_finished(unit.id, now_s):
        return "answered"
    if held.is_cancelled(unit.id, now_s):
        return "cancelled"
    if unit.deadline_s <= now_s:
        return "expired"
    if held.is_caller_silent(unit.reply_subject, unit.published_s):
        return "caller_silent"
    return ""


def _malformed(unit: HeldUnit | None, what: str) -> Judgement:
    return Judgement(Fate.DEAD, unit, unit_form.MALFORMED, CallError(code_pb2.INTERNAL, unit_form.MALFORMED, what))


def _held(message: work_pb2.Unit, delivery: Delivery, payload: bytes, now_s: float, broker_s: float) -> HeldUnit:
    items = len(message.items)
    tokens = message.estimated_tokens
    return HeldUnit(
        id=message.id,
        request_id=message.request_id,
        reply_subject=message.reply_subject,
        lane=delivery.lane,
        tenant=message.tenant,
        work_class=lanes.CLASSES.get(message.work_class, ""),
        profile_digest=message.profile_digest,
        deadline_s=now_s + delivery.published_s + message.remaining_ms / 1e3 - broker_s,
        pulled_s=now_s,
        published_s=delivery.published_s,
        ack_subject=delivery.ack_subject,
        deliveries=delivery.deliveries,
        payload=payload,
        items=items,
        tokens=tokens,
        squared_tokens=tokens * tokens // max(1, items),
        estimated_tokens=tokens,
        blobs=_blobs(message),
        put_backs=message.put_backs,
    )


def _blobs(message: work_pb2.Unit) -> tuple[Blob, ...]:
    """The blobs of a unit that may be served; a wrong reference is never used."""
    try:
        return blobs.references(blobs.ITEMS, message.id, message.blobs, limits.UNIT_ITEMS)
    except blobs.BadReference:
        return ()
