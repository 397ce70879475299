"""Units that can never be served: kept on the dead-letter stream with the reason."""

from __future__ import annotations

from shoal.work.v1 import work_pb2
from shoal_common import lanes, logs
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_worker.delivery import Pulled
from shoal_worker.intake import Judgement

log = logs.get("dead-letters")
TIMEOUT_S = 5.0


async def keep(session: Session, message: Pulled, judgement: Judgement) -> bool:
    """Publishes a message as a dead letter, once however often it is delivered; whether the broker has it."""
    delivery = message.delivery
    letter = work_pb2.DeadLetter(
        unit=message.data,
        subject=lanes.work_subject(message.lane, message.work_class),
        reason=judgement.reason,
        detail=judgement.error.message if judgement.error else "",
        deliveries=delivery.deliveries,
    )
    log.error("a unit is dead", subject=letter.subject, sequence=delivery.sequence, reason=letter.reason)
    try:
        await session.publish(
            f"{lanes.DEAD_LETTER_SUBJECT}.{message.lane}",
            letter.SerializeToString(),
            msg_id=f"{message.lane}-{delivery.sequence}",
            timeout_s=TIMEOUT_S,
        )
    except (ApiError, BrokerTimeout) as error:
        log.error("a dead letter could not be kept", subject=letter.subject, error=str(error))
        return False
    return True
