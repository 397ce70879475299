"""Clears a lane that nobody serves any more: answers each unit left on it, then removes its consumers."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import Callable

from nats.aio.msg import Msg

from shoal.work.v1 import work_pb2
from shoal_common import dead_letters, errors, lanes, limits, logs, queue_setup, unit_form
from shoal_common.nats_session import BrokerTimeout, Session

log = logs.get("lane-drain")
PULL_UNITS = 500
PULL_TIMEOUT_S = 2.0
PULLS = 4
"""Pulls of one lane and class before others get their turn."""
RETRY_WAITS_S = limits.RESULT_RETRY_S[:3]
"""Fewer than a worker's: these callers only lose an error."""
ACK_WAITS_S = (1.0, 1.0)


async def drain(session: Session, token: str, error: Callable[[], errors.CallError]) -> bool:
    """Answers the units of a lane with an error; whether the lane is clear and its consumers are gone.

    False while workers still hold units of it, or more wait than one turn takes.

    Raises:
        ApiError, BrokerTimeout: the broker refused or did not answer.
    """
    await queue_setup.ensure_consumers(session, token)
    stream = lanes.stream_name(lanes.shard_of(token))
    left = 0
    for work_class in lanes.CLASSES.values():
        consumer = lanes.consumer_name(token, work_class)
        for _ in range(PULLS):
            units = await _pull(session, stream, consumer)
            await _answer(session, units, error())
            if len(units) < PULL_UNITS:
                break
        info = await session.api(f"CONSUMER.INFO.{stream}.{consumer}")
        left += info["num_pending"] + info["num_ack_pending"]
    if left:
        return False
    await queue_setup.delete_consumers(session, token)
    return True


async def _pull(session: Session, stream: str, consumer: str) -> list[Msg]:
    """The units that wait now, at most PULL_UNITS; a pull that is lost gives what came until its timeout."""
    units: list[Msg] = []
    done = asyncio.Event()

    async def on_message(msg: Msg) -> None:
        if not (msg.headers or {}).get("Status"):
            units.append(msg)
        if (msg.headers or {}).get("Status") or len(units) == PULL_UNITS:
            done.set()

    inbox = f"_INBOX.{secrets.token_hex(11)}"
    subscription = await session.subscribe(inbox, on_message)
    request = json.dumps({"batch": PULL_UNITS, "no_wait": True}).encode()
    try:
        if not await session.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", request, reply=inbox):
            raise BrokerTimeout("the broker is away")
        async with asyncio.timeout(PULL_TIMEOUT_S):
            await done.wait()
    except TimeoutError:
        log.debug("a pull was lost", consumer=consumer)
    finally:
        await subscription.unsubscribe()
    return units


async def _answer(session: Session, messages: list[Msg], error: errors.CallError) -> None:
    """Sends each waiting gateway its units' error, then acks them: confirmed, orphaned or expired alike.

    What is no unit becomes a dead letter; if the broker does not take that, it is delivered again.
    """
    by_gateway: dict[str, list[work_pb2.UnitResult]] = defaultdict(list)
    done: list[Msg] = []
    for message in messages:
        unit = unit_form.parse(message.data)
        if unit is None:
            if await _bury(session, message):
                done.append(message)
            continue
        done.append(message)
        expires_s = message.metadata.timestamp.timestamp() + unit.remaining_ms / 1000
        if session.clock.now_s() < expires_s:
            status = error.status(unit.request_id).SerializeToString()
            by_gateway[unit.reply_subject].append(
                work_pb2.UnitResult(
                    unit_id=unit.id, last=True, worker="registry", attempt=message.metadata.num_delivered, error=status
                )
            )
    async with asyncio.TaskGroup() as group:
        for subject, results in by_gateway.items():
            batch = work_pb2.ResultBatch(results=results).SerializeToString()
            group.create_task(session.confirmed(subject, batch, RETRY_WAITS_S))
    async with asyncio.TaskGroup() as group:
        for message in done:
            # Confirmed by the broker, so that what is counted afterwards is without them.
            group.create_task(session.confirmed(message.reply, b"+ACK", ACK_WAITS_S))
    if messages:
        log.info("units of a retired lane answered", units=len(messages), error=error.reason)


async def _bury(session: Session, message: Msg) -> bool:
    """Keeps a message that is no unit as a dead letter; whether the broker has it."""
    return await dead_letters.keep(
        session,
        subject=message.subject,
        sequence=message.metadata.sequence.stream,
        unit=message.data,
        reason=unit_form.MALFORMED,
        detail=unit_form.UNANSWERABLE,
        deliveries=message.metadata.num_delivered,
    )
