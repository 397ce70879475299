"""What the broker knows of every lane's queues, in a few calls a shard."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from shoal_common import lanes, limits
from shoal_common.nats_session import ApiError, Session
from shoal_common.together import together

SHARDS_AT_ONCE = 4
MESSAGES_AT_ONCE = 8
NO_MESSAGE = 10037
CLASS_NAMES = frozenset(lanes.CLASSES.values())


class QueueKey(NamedTuple):
    """One of a lane's two queues."""

    lane: str
    """The lane's token."""
    work_class: str


class Queue(NamedTuple):
    """A queue as the broker has it. Without a consumer all its units wait, and nobody can pull them."""

    key: QueueKey
    stored_units: int
    """Units in the stream: those that wait and those that workers hold."""
    has_consumer: bool
    waiting_units: int
    """Units that were never delivered."""
    in_flight_units: int
    """Units that were delivered and not acked."""
    delivered_sequence: int
    """The newest unit that was delivered."""


class Head(NamedTuple):
    """A unit in a stream."""

    sequence: int
    published_s: float
    """When the broker stored it, on its clock: seconds since 1970."""


async def survey(session: Session) -> dict[QueueKey, Queue]:
    """Every queue that has units or a consumer.

    Raises:
        ApiError, BrokerTimeout: the broker refused or did not answer.
    """
    shards = await together((_shard(session, shard) for shard in range(limits.SHARDS)), SHARDS_AT_ONCE)
    return {queue.key: queue for queues in shards for queue in queues}


async def oldest_waiting(session: Session, queues: Iterable[Queue]) -> dict[QueueKey, Head]:
    """The oldest unit that was never delivered, of each queue that has one. Raises as `survey`."""
    waiting = [queue for queue in queues if queue.waiting_units]
    heads = await together((head(session, each.key, each.delivered_sequence + 1) for each in waiting), MESSAGES_AT_ONCE)
    return {queue.key: found for queue, found in zip(waiting, heads, strict=True) if found is not None}


async def head(session: Session, key: QueueKey, start: int = 1) -> Head | None:
    """The first unit of a queue from sequence `start` on, delivered or not. Raises as `survey`."""
    stream = lanes.stream_name(lanes.shard_of(key.lane))
    request = {"seq": start, "next_by_subj": lanes.work_subject(*key), "no_hdr": True}
    try:
        message = (await session.api(f"STREAM.MSG.GET.{stream}", request))["message"]
    except ApiError as error:
        if error.err_code != NO_MESSAGE:
            raise
        return None
    return Head(message["seq"], datetime.fromisoformat(message["time"]).timestamp())


async def consumer(session: Session, key: QueueKey) -> dict[str, Any]:
    """JetStream's word on a queue's consumer. Raises as `survey`."""
    stream = lanes.stream_name(lanes.shard_of(key.lane))
    return await session.api(f"CONSUMER.INFO.{stream}.{lanes.consumer_name(*key)}")


async def _shard(session: Session, shard: int) -> list[Queue]:
    stream = lanes.stream_name(shard)
    consumers: dict[QueueKey, dict[str, Any]] = {}
    listed = 0
    while True:
        page = await session.api(f"CONSUMER.LIST.{stream}", {"offset": listed})
        found = page.get("consumers") or []
        listed += len(found)
        consumers.update((key, each) for each in found if (key := _key(each["name"])).work_class in CLASS_NAMES)
        if not found or listed >= page["total"]:
            break
    info = await session.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
    units = {QueueKey(*subject.split(".")[3:]): n for subject, n in (info["state"].get("subjects") or {}).items()}
    return [_queue(key, units.get(key, 0), consumers.get(key)) for key in {**consumers, **units}]


def _queue(key: QueueKey, stored: int, consumer: dict[str, Any] | None) -> Queue:
    if consumer is None:
        return Queue(key, stored, False, stored, 0, 0)
    delivered = consumer["delivered"]["stream_seq"]
    return Queue(key, stored, True, consumer["num_pending"], consumer["num_ack_pending"], delivered)


def _key(consumer: str) -> QueueKey:
    token, _, work_class = consumer.rpartition("_")
    return QueueKey(token, work_class)
