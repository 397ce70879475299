"""A message that can never be served: kept on the dead-letter stream with what was judged of it."""

from __future__ import annotations

from shoal_common import dead_letters, lanes
from shoal_common.nats_session import Session
from shoal_worker.delivery import Pulled
from shoal_worker.intake import Judgement


async def keep(session: Session, message: Pulled, judgement: Judgement) -> bool:
    """Publishes a message as a dead letter, once however often it is delivered; whether the broker has it."""
    delivery = message.delivery
    return await dead_letters.keep(
        session,
        subject=lanes.work_subject(message.lane, message.work_class),
        sequence=delivery.sequence,
        unit=message.data,
        reason=judgement.reason,
        detail=judgement.error.message if judgement.error else "",
        deliveries=delivery.deliveries,
    )
