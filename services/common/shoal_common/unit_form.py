"""What makes a message of a lane a unit: workers ask before they take one, requeueing before it puts one back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from shoal.work.v1 import work_pb2
from shoal_common import blobs, lanes, limits

MALFORMED = "MALFORMED_UNIT"
"""The reason of what is none."""
UNANSWERABLE = "the message is no Unit with an id and a reply subject"


def parse(data: bytes) -> work_pb2.Unit | None:
    """The unit of a message; None when it is none, or nobody could be answered."""
    try:
        unit = work_pb2.Unit.FromString(data)
    except DecodeError:
        return None
    return unit if unit.id and is_subject(unit.reply_subject) else None


def fault(unit: work_pb2.Unit) -> str:
    """Why a parsed unit can never be served; empty when it can."""
    if not unit.items:
        return "the unit has no items"
    if len(unit.items) > limits.UNIT_ITEMS:
        return f"the unit has {len(unit.items):,} items; at most {limits.UNIT_ITEMS} travel together"
    if len(unit.id.encode()) > limits.UNIT_ID_BYTES:
        return f"the unit's id is longer than {limits.UNIT_ID_BYTES} bytes"
    if not unit.profile_digest:
        return "the unit names no profile"
    if unit.work_class not in lanes.CLASSES:
        return f"the unit has no class that is known: {unit.work_class}"
    if unit.remaining_ms > limits.DEADLINE_MAX_S * 1000:
        return f"the unit has {unit.remaining_ms:,} ms left; no request has more than {limits.DEADLINE_MAX_S:.0f} s"
    try:
        by_blob = blobs.references(blobs.ITEMS, unit.id, unit.blobs, len(unit.items))
    except blobs.BadReference as error:
        return str(error)
    if any(unit.items[blob.index] for blob in by_blob):
        return "the unit has an item that is a blob as well"
    return ""


def is_subject(subject: str) -> bool:
    """Whether one can publish there: what a unit names goes onto the wire of the broker's protocol."""
    return bool(subject) and subject.isascii() and subject.isprintable() and not set(subject) & set(" *>")
