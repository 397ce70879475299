"""Puts the unit of a dead letter back on its lane."""

from __future__ import annotations

from collections.abc import Container

from shoal.work.v1 import work_pb2
from shoal_common import dead_letters, lanes, limits, logs, unit_form
from shoal_common.dead_letters import Letter
from shoal_common.nats_session import ApiError, Session
from shoal_gateway.publishing import LANE_FULL

log = logs.get("requeueing")
PUBLISH_TIMEOUT_S = 5.0


class Refused(Exception):
    """The unit cannot go back: a stable, upper-case reason, and what that means."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def requeue(session: Session, letter: Letter, served: Container[str]) -> None:
    """Publishes the unit anew, and removes the letter once the broker has stored it.

    Done twice it stores one unit, as long as the broker remembers ids (two minutes). `served` are the
    tokens of the lanes of registered models.

    Raises:
        Refused: the letter stays.
        ApiError, BrokerTimeout: the broker refused or did not answer; the letter may be there still.
    """
    unit = renewed(letter)
    if letter.lane not in served:
        raise Refused("LANE_RETIRED", "no registered model is served on the lane that it lay on")
    try:
        await session.publish(
            lanes.work_subject(letter.lane, lanes.CLASSES[unit.work_class]),
            unit.SerializeToString(),
            msg_id=unit.id,
            timeout_s=PUBLISH_TIMEOUT_S,
        )
    except ApiError as error:
        if error.description in LANE_FULL:
            raise Refused("LANE_FULL", "the lane holds as many units as it may; try again later") from None
        raise
    await dead_letters.delete(session, letter.sequence)
    log.info("a dead letter is back on its lane", sequence=letter.sequence, lane=letter.lane, unit=unit.id)


def renewed(letter: Letter) -> work_pb2.Unit:
    """The unit as it is published anew, always the same of one letter.

    It has another id, since workers remember the old one as answered, and at least the default deadline.

    Raises:
        Refused: it is no unit that can be served.
    """
    if not letter.is_whole:
        raise Refused(
            unit_form.MALFORMED,
            f"it has {letter.content.unit_bytes:,} bytes, more than any unit: only the first "
            f"{len(letter.content.unit):,} were kept",
        )
    unit = unit_form.parse(letter.content.unit)
    fault = unit_form.UNANSWERABLE if unit is None else unit_form.fault(unit)
    if unit is None or fault:
        raise Refused(unit_form.MALFORMED, fault)
    if unit.blobs:
        raise Refused("BLOBS_REMOVED", "its large items lay in object storage, and are not kept with a dead letter")
    unit.id = f"requeued.{letter.kept_unix_ms}.{letter.sequence}"
    unit.remaining_ms = max(unit.remaining_ms, int(limits.DEADLINE_DEFAULT_S * 1000))
    unit.put_backs = 0
    return unit
