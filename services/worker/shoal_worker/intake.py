"""What becomes of a message at the moment it is pulled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits
from shoal_common.errors import CallError
from shoal_worker.decisions.unit import HeldUnit
from shoal_worker.delivery import Pulled
from shoal_worker.held import Held

MALFORMED = "MALFORMED_UNIT"
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
    """Set for TAKE, and for DEAD where somebody can be answered."""
    reason: str = ""
    error: CallError | None = None
    """Set for DEAD: what the caller is told."""


_KNOWN = Judgement(Fate.KNOWN)
_ANSWERED = Judgement(Fate.ACK, reason="answered")


def judge(pulled: Pulled, held: Held, now_s: float, broker_s: float) -> Judgement:
    """Reads a message; `now_s` is the monotonic clock and `broker_s` the broker's, at one moment."""
    unit = _read(pulled, now_s, broker_s)
    if unit is None:
        return _malformed(None, "the message is no Unit with an id and a reply subject")
    if held.is_finished(unit.id, now_s):
        return _ANSWERED
    known = held.get(unit.id)
    if known is not None:
        known.ack_subject = unit.ack_subject
        return _KNOWN
    if held.is_cancelled(unit.id, now_s):
        return Judgement(Fate.ACK, reason="cancelled")
    if unit.deadline_s <= now_s:
        return Judgement(Fate.ACK, reason="expired")
    if held.is_caller_silent(unit.reply_subject, unit.published_s):
        return Judgement(Fate.ACK, reason="caller_silent")
    if not unit.items or not unit.profile_digest or not unit.work_class:
        return _malformed(unit, "the unit has no items, no profile or no class")
    if unit.deliveries > limits.DELIVERY_LIMIT:
        error = CallError(
            code_pb2.INTERNAL,
            DELIVERY_LIMIT,
            f"given up after {limits.DELIVERY_LIMIT} deliveries that nobody finished: "
            "the input may bring the runtime down",
        )
        return Judgement(Fate.DEAD, unit, DELIVERY_LIMIT, error)
    return Judgement(Fate.TAKE, unit)


def _malformed(unit: HeldUnit | None, what: str) -> Judgement:
    return Judgement(Fate.DEAD, unit, MALFORMED, CallError(code_pb2.INTERNAL, MALFORMED, what))


def _read(pulled: Pulled, now_s: float, broker_s: float) -> HeldUnit | None:
    try:
        message = work_pb2.Unit.FromString(pulled.data)
    except DecodeError:
        return None
    reply_subject = message.reply_subject
    if not message.id or not _is_subject(reply_subject):
        return None
    delivery = pulled.delivery
    items = len(message.items)
    tokens = message.estimated_tokens
    return HeldUnit(
        id=message.id,
        request_id=message.request_id,
        reply_subject=reply_subject,
        lane=pulled.lane,
        work_class=lanes.CLASSES.get(message.work_class, ""),
        profile_digest=message.profile_digest,
        deadline_s=now_s + delivery.published_s + message.remaining_ms / 1e3 - broker_s,
        pulled_s=now_s,
        published_s=delivery.published_s,
        ack_subject=delivery.ack_subject,
        deliveries=delivery.deliveries,
        payload=pulled.data,
        items=items,
        tokens=tokens,
        squared_tokens=tokens * tokens // max(1, items),
        traceparent=pulled.traceparent,
    )


def _is_subject(subject: str) -> bool:
    """Whether one can publish there: what a Unit names goes onto the wire of the broker's protocol."""
    return bool(subject) and subject.isascii() and subject.isprintable() and not set(subject) & set(" *>")
