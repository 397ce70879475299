"""Dead letters on a real broker: kept once, read by the page, counted by reason, removed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.work.v1 import work_pb2
from shoal_common import dead_letters, lanes, limits, queue_setup
from shoal_common.dead_letters import Letter
from shoal_common.nats_session import Session
from tests.support.broker import session_with
from tests.support.nats import NatsServer

LANE = lanes.Lane("default", "d0").token
SUBJECT = lanes.work_subject(LANE, "bulk")
UNIT = work_pb2.Unit(id="u1", items=[b"an item"]).SerializeToString()


@pytest.fixture
async def session(nats_server: NatsServer) -> AsyncIterator[Session]:
    async with session_with(nats_server) as session:
        await queue_setup.ensure_streams(session)
        yield session


async def keep(session: Session, sequence: int, reason: str = "DELIVERY_LIMIT", unit: bytes = UNIT) -> bool:
    return await dead_letters.keep(
        session, subject=SUBJECT, sequence=sequence, unit=unit, reason=reason, detail="given up", deliveries=21
    )


async def sequences(session: Session, **which) -> list[int]:
    return [letter.sequence for letter in (await dead_letters.read(session, count=100, **which)).letters]


async def test_a_letter_says_all_that_was_known(session: Session) -> None:
    assert await keep(session, 7)
    letter = await dead_letters.get(session, 1)
    assert letter is not None and letter.is_whole
    assert (letter.sequence, letter.lane, letter.work_class) == (1, LANE, "bulk")
    assert abs(letter.kept_unix_ms / 1e3 - session.clock.now_s()) < 5
    assert letter.content == work_pb2.DeadLetter(
        unit=UNIT,
        subject=SUBJECT,
        reason="DELIVERY_LIMIT",
        detail="given up",
        deliveries=21,
        unit_bytes=len(UNIT),
    )
    assert await dead_letters.get(session, 2) is None


async def test_a_unit_that_is_delivered_again_is_kept_once(session: Session) -> None:
    assert await keep(session, 7) and await keep(session, 7)
    assert await sequences(session) == [1]
    assert await keep(session, 8)
    assert await sequences(session) == [1, 2]


async def test_a_message_as_large_as_the_broker_takes_is_kept_in_part(session: Session) -> None:
    """A letter over the broker's limit would close the connection, and the worker with it, again and again."""
    assert await keep(session, 7, unit=bytes(limits.NATS_PAYLOAD_BYTES - 200))
    letter = await dead_letters.get(session, 1)
    assert letter is not None and not letter.is_whole
    assert letter.content.unit_bytes == limits.NATS_PAYLOAD_BYTES - 200
    assert len(letter.content.unit) == limits.DEAD_LETTER_UNIT_BYTES
    assert session.is_up


async def test_pages_by_count_reason_and_size(session: Session) -> None:
    for n in range(10):
        await keep(session, n + 1, "A" if n % 2 else "B")
    first = await dead_letters.read(session, count=4)
    assert ([each.sequence for each in first.letters], first.remaining) == ([1, 2, 3, 4], 6)
    rest = await dead_letters.read(session, start=5, count=100)
    assert ([each.sequence for each in rest.letters], rest.remaining) == ([5, 6, 7, 8, 9, 10], 0)
    assert await sequences(session, reason="A") == [2, 4, 6, 8, 10]
    assert await sequences(session, reason="A", start=5) == [6, 8, 10]
    assert await sequences(session, reason="C") == [] == await sequences(session, start=11)
    assert await dead_letters.counts(session) == {"A": 5, "B": 5}

    big = 3 * [bytes(limits.DEAD_LETTER_UNIT_BYTES)]
    for n, unit in enumerate((*big, *big)):
        await keep(session, 100 + n, "BIG", unit)
    page = await dead_letters.read(session, count=100, reason="BIG")
    assert 1 <= len(page.letters) < 6 and len(page.letters) + page.remaining == 6


async def test_letters_are_removed_by_sequence_and_by_reason(session: Session) -> None:
    for n in range(6):
        await keep(session, n + 1, "A" if n % 2 else "B")
    assert await dead_letters.delete(session, 3)
    assert not await dead_letters.delete(session, 3)
    assert not await dead_letters.delete(session, 99)
    assert await dead_letters.delete_all(session, "A") == 3
    assert await sequences(session) == [1, 5]
    assert await dead_letters.delete_all(session) == 2
    assert await dead_letters.counts(session) == {}
    assert await dead_letters.delete_all(session) == 0


async def test_what_is_no_letter_can_be_seen_and_removed(session: Session) -> None:
    await session.publish(lanes.dead_letter_subject("x", "ODD"), b"\xff\xff", msg_id="odd", timeout_s=5)
    [letter] = (await dead_letters.read(session, count=10)).letters
    assert isinstance(letter, Letter) and (letter.content.reason, letter.lane) == ("ODD", "")
    assert await dead_letters.delete_all(session, "ODD") == 1
