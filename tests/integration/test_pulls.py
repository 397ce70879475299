"""Pulls on a real broker: what a peek is answered, what waits behind a drain, and what siblings hear of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal_common import lanes, queue_setup
from shoal_common.nats_session import Session
from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.decisions.pull_plan import Kind, Order
from shoal_worker.decisions.unit import INTERACTIVE
from shoal_worker.delivery import Pulled
from shoal_worker.outbox import Outbox
from shoal_worker.pulls import Pulls
from tests.support.broker import session_with
from tests.support.nats import NatsServer
from tests.support.until import until

LANE = lanes.Lane("default", "a" * 64)


class Ears:
    """Notes what pulls bring."""

    def __init__(self) -> None:
        self.messages: list[Pulled] = []
        self.ended: list[tuple[int, bool]] = []
        self.seen: list[int] = []
        self.unseen: list[int] = []
        self.notes: list[DrainNote] = []

    def pulled(self, messages: list[Pulled], *, waited: bool) -> None:
        self.messages += messages

    def pull_ended(self, pull_id: int, *, empty: bool) -> str | None:
        self.ended.append((pull_id, empty))
        return LANE.token

    def pull_peeked(self, pull_id: int, *, found: bool) -> None:
        (self.seen if found else self.unseen).append(pull_id)

    def sibling_drained(self, note: DrainNote) -> None:
        self.notes.append(note)

    def lane_is_back(self, lane: str) -> None:
        pass


class Bench:
    """A broker with the lane's queue, and who pulls from it."""

    def __init__(self, server: NatsServer, session: Session, group: asyncio.TaskGroup) -> None:
        self._server = server
        self._group = group
        self._running: list[asyncio.Task] = []
        self.session = session
        self._ids = itertools.count()

    async def publish(self, count: int) -> None:
        for number in range(count):
            subject = lanes.work_subject(LANE.token, INTERACTIVE)
            await self.session.publish(subject, b"a unit", msg_id=f"{next(self._ids)}-{number}", timeout_s=5)

    async def puller(self, session: Session) -> tuple[Pulls, Ears]:
        outbox, ears = Outbox(session), Ears()
        self._running.append(self._group.create_task(outbox.run()))
        pulls = Pulls(session, outbox, ears, self._group)
        await pulls.start()
        return pulls, ears

    async def waiting(self) -> tuple[int, int]:
        """Messages that were never delivered, and those delivered and not acknowledged."""
        stream, consumer = lanes.stream_name(LANE.shard), lanes.consumer_name(LANE.token, INTERACTIVE)
        info = await self.session.api(f"CONSUMER.INFO.{stream}.{consumer}")
        return info["num_pending"], info["num_ack_pending"]

    def stop(self) -> None:
        for task in self._running:
            task.cancel()


@contextlib.asynccontextmanager
async def queue(server: NatsServer) -> AsyncIterator[Bench]:
    async with session_with(server) as session, asyncio.TaskGroup() as group:
        await queue_setup.ensure_streams(session)
        await queue_setup.ensure_consumers(session, LANE.token)
        bench = Bench(server, session, group)
        yield bench
        bench.stop()


@pytest.fixture
def server(tmp_path: Path):
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


def order(pull_id: int, kind: Kind, batch: int = 1) -> Order:
    return Order(pull_id, LANE.token, INTERACTIVE, batch, kind, expires_s=0.2)


async def test_a_peek_sees_work_and_takes_nothing(server: NatsServer) -> None:
    async with queue(server) as bench:
        pulls, ears = await bench.puller(bench.session)
        pulls.send(order(1, Kind.PEEK))
        await until(lambda: ears.ended)
        assert (ears.ended, ears.seen) == ([(1, True)], [])
        await bench.publish(3)
        pulls.send(order(2, Kind.PEEK))
        await until(lambda: ears.seen)
        assert (ears.seen, ears.messages, len(ears.ended)) == ([2], [], 1)
        assert await bench.waiting() == (3, 0)


async def test_of_many_peeks_at_once_none_says_that_a_full_lane_is_empty(server: NatsServer) -> None:
    async with queue(server) as bench:
        pulls, ears = await bench.puller(bench.session)
        await bench.publish(3)
        for pull_id in range(20):
            pulls.send(order(pull_id, Kind.PEEK))
        await until(lambda: len(ears.seen) + len(ears.unseen) == 20)
        assert ears.seen and not ears.ended and not ears.messages
        assert await bench.waiting() == (3, 0)


async def test_a_drain_after_peeks_brings_all_for_the_first_time_and_tells_what_is_left(server: NatsServer) -> None:
    async with queue(server) as bench:
        pulls, ears = await bench.puller(bench.session)
        await bench.publish(5)
        pulls.send(order(1, Kind.PEEK))
        await until(lambda: ears.seen)
        pulls.send(order(2, Kind.DRAIN, batch=3))
        await until(lambda: len(ears.messages) == 3)
        assert [message.delivery.deliveries for message in ears.messages] == [1, 1, 1]
        assert [message.delivery.pending for message in ears.messages] == [4, 3, 2]
        assert (ears.seen, ears.ended) == ([1], []), "a filled drain has no status"
        pulls.send(order(3, Kind.DRAIN, batch=3))
        await until(lambda: ears.ended)
        assert (len(ears.messages), ears.ended) == (5, [(3, True)])


async def test_a_waiting_pull_lasts_as_long_as_it_says(server: NatsServer) -> None:
    async with queue(server) as bench:
        pulls, ears = await bench.puller(bench.session)
        began_s = asyncio.get_running_loop().time()
        pulls.send(order(1, Kind.WAIT))
        await until(lambda: ears.ended)
        assert ears.ended == [(1, True)]
        assert asyncio.get_running_loop().time() - began_s >= 0.19
        pulls.send(order(2, Kind.WAIT))
        await bench.publish(1)
        await until(lambda: ears.messages)
        assert ears.messages[0].delivery.pending == 0


async def test_a_lane_without_consumers_is_no_empty_lane(server: NatsServer) -> None:
    async with queue(server) as bench:
        await queue_setup.delete_consumers(bench.session, LANE.token)
        pulls, ears = await bench.puller(bench.session)
        pulls.send(order(1, Kind.PEEK))
        await until(lambda: ears.ended)
        assert (ears.ended, ears.seen) == ([(1, False)], [])


async def test_siblings_hear_of_a_drain_and_the_drainer_does_not(server: NatsServer) -> None:
    async with session_with(server, "sibling") as other, queue(server) as bench:
        mine, my_ears = await bench.puller(bench.session)
        theirs, their_ears = await bench.puller(other)
        for pulls in (mine, theirs):
            pulls.follow([LANE.token])
        note = DrainNote(LANE.token, INTERACTIVE, 7, 2, 0.0125, 0.001)

        def told() -> bool:
            mine.tell(note)
            return bool(their_ears.notes)

        await until(told)
        assert their_ears.notes[0] == note
        theirs.follow([])
        await until(lambda: not theirs._notes._subscriptions)
        await other.nc.flush()
        heard = len(their_ears.notes)
        mine.tell(note)
        theirs.tell(note)
        await until(lambda: my_ears.notes)
        assert my_ears.notes == [note]
        await other.nc.flush()
        assert len(their_ears.notes) == heard, "they do not follow the lane any more"
