"""Puts a request's units on the queue and says in the caller's terms why one could not be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shoal.work.v1 import work_pb2
from shoal_common import errors, lanes, logs, telemetry
from shoal_common.lanes import CLASSES
from shoal_common.nats_session import ApiError, BrokerTimeout, Session

log = logs.get("publishing")
LANE_FULL = ("maximum messages per subject exceeded", "maximum bytes exceeded")
"""What the broker says of a lane with too many units, and of a shard with too many bytes."""
RETRY_S = 1.0


async def publish(
    session: Session, lane: str, units: Sequence[work_pb2.Unit], timeout_s: float, traceparent: str | None
) -> None:
    """Returns once the broker has stored every unit.

    Raises:
        CallError: RESOURCE_EXHAUSTED when the lane is full, UNAVAILABLE when the queue refuses.
        TimeoutError: the queue did not answer in time.
        After either some of the units may be stored.
    """
    headers = {telemetry.TRACEPARENT: traceparent} if traceparent else None
    subject = lanes.work_subject(lane, CLASSES[units[0].work_class])
    if len(units) == 1:
        return await _publish(session, subject, units[0], timeout_s, headers)
    try:
        async with asyncio.TaskGroup() as group:
            for unit in units:
                group.create_task(_publish(session, subject, unit, timeout_s, headers))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _publish(
    session: Session, subject: str, unit: work_pb2.Unit, timeout_s: float, headers: dict[str, str] | None
) -> None:
    try:
        await session.publish(subject, unit.SerializeToString(), msg_id=unit.id, timeout_s=timeout_s, headers=headers)
    except BrokerTimeout:
        raise TimeoutError from None
    except ApiError as error:
        if error.description in LANE_FULL:
            raise errors.overloaded("the model's queue is full; try again later", RETRY_S, "LANE_FULL") from None
        log.error("the queue refused a unit", request_id=unit.request_id, subject=subject, error=str(error))
        raise away() from None


def away() -> errors.CallError:
    """UNAVAILABLE: the queue cannot take work now."""
    return errors.unavailable("the work queue does not answer; try again", RETRY_S, "QUEUE_UNAVAILABLE")
