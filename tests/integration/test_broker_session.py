"""The kit's promises over a real broker: publishes survive its death, buckets and leases are conditional."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import structlog

from shoal_common import lanes
from shoal_common.bucket import Bucket, Conflict
from shoal_common.lease import Lease
from shoal_common.nats_session import ApiError, BrokerTimeout, Session, connected_session
from shoal_common.process import Stop
from tests.support.nats import NatsServer
from tests.support.until import until


@dataclass
class Settings:
    nats_url: str
    nats_token: str


@pytest.fixture
async def session(nats_server: NatsServer) -> AsyncIterator[Session]:
    async with connected_session(Settings(nats_server.url, nats_server.token), "test", Stop()) as connected:
        yield connected


async def test_publishes_survive_a_broker_that_is_killed(session: Session, nats_server: NatsServer) -> None:
    config = lanes.stream_config(3)
    await session.api(f"STREAM.CREATE.{config.name}", config.as_dict())

    async def publish(number: int) -> int:
        return await session.publish("shoal.work.3.lane.interactive", b"x" * 1000, msg_id=str(number), timeout_s=20)

    publishes = [asyncio.create_task(publish(n)) for n in range(2000)]
    await asyncio.wait(publishes, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.to_thread(nats_server.restart)
    sequences = await asyncio.gather(*publishes)
    stored = (await session.api(f"STREAM.INFO.{config.name}"))["state"]["messages"]
    assert len(set(sequences)) == stored == 2000, "each once: none lost, none twice"


async def test_a_publish_ends_by_its_deadline(session: Session, nats_server: NatsServer) -> None:
    nats_server.kill()
    with pytest.raises(BrokerTimeout):
        await session.publish("shoal.work.3.lane.interactive", b"", msg_id="1", timeout_s=0.3)
    nats_server.start()


async def test_nothing_is_sent_into_a_dead_connection(session: Session, nats_server: NatsServer) -> None:
    nats_server.kill()
    await until(lambda: not session.is_up)
    assert not await session.send("somewhere", b"stale")
    nats_server.start()


async def test_a_full_lane_refuses(session: Session) -> None:
    config = lanes.stream_config(3)
    config.max_msgs_per_subject = 2
    await session.api(f"STREAM.CREATE.{config.name}", config.as_dict())
    for n in range(2):
        await session.publish("shoal.work.3.lane.bulk", b"", msg_id=str(n), timeout_s=5)
    with pytest.raises(ApiError, match="maximum messages per subject"):
        await session.publish("shoal.work.3.lane.bulk", b"", msg_id="2", timeout_s=5)
    await session.publish("shoal.work.3.other.bulk", b"", msg_id="3", timeout_s=5)


async def test_a_bucket_of_any_size_is_read_whole(session: Session) -> None:
    bucket = Bucket(session, "test")
    await bucket.ensure()
    assert (await bucket.read()).entries == {}
    await asyncio.gather(*[bucket.put(f"key.{n}", str(n).encode(), expected=0) for n in range(1500)])
    snapshot = await bucket.read()
    assert {key: entry.value for key, entry in snapshot.entries.items()} == {
        f"key.{n}": str(n).encode() for n in range(1500)
    }
    assert snapshot.revision == await bucket.last_revision() == 1500


async def test_writes_are_conditional(session: Session) -> None:
    bucket = Bucket(session, "test")
    await bucket.ensure()
    first = await bucket.put("key", b"1", expected=0)
    with pytest.raises(Conflict):
        await bucket.put("key", b"2", expected=0)
    second = await bucket.put("key", b"2", expected=first)
    with pytest.raises(Conflict):
        await bucket.delete("key", expected=first)
    await bucket.delete("key", expected=second)
    assert await bucket.get("key") is None


async def test_one_holder_at_a_time_and_its_restart_goes_on(session: Session) -> None:
    async with Lease(session, "service", "a").kept() as a:
        await asyncio.wait_for(a.wait_held(), 5)
        async with Lease(session, "service", "b").kept() as b:
            async with Lease(session, "service", "a").kept() as restarted:
                await asyncio.wait_for(restarted.wait_held(), 5)
                assert not b.held
    async with Lease(session, "service", "b").kept() as b:
        await asyncio.wait_for(b.wait_held(), 10)


async def test_asking_nobody_is_not_confirmed(session: Session) -> None:
    assert not await session.confirmed("nobody.home", b"", [0.05, 0.05])

    async def answer(msg) -> None:
        await session.send(msg.reply)

    await session.subscribe("somebody.home", answer)
    assert await session.confirmed("somebody.home", b"", [1.0])


async def test_a_confirmation_is_still_asked_for_after_an_outage_of_any_length(
    session: Session, nats_server: NatsServer
) -> None:
    async def answer(msg) -> None:
        await session.send(msg.reply)

    await session.subscribe("somebody.home", answer)
    nats_server.kill()
    await until(lambda: not session.is_up)
    asking = asyncio.create_task(session.confirmed("somebody.home", b"", [0.01, 0.01], 30.0))
    later_s = asyncio.get_running_loop().time() + 0.5
    await until(lambda: asyncio.get_running_loop().time() > later_s)
    assert not asking.done()
    nats_server.start()
    assert await asyncio.wait_for(asking, 10)


@pytest.mark.parametrize("listens", [False, True], ids=["no responders before", "silence before"])
async def test_a_reconnect_asks_again_at_once(session: Session, nats_server: NatsServer, listens: bool) -> None:
    """Nobody sits out the rest of a long wait. The other side is of the same connection, and so back with it."""
    asked = asyncio.Event()
    is_back = False

    async def answer(msg) -> None:
        asked.set()
        if is_back:
            await session.send(msg.reply)

    if listens:
        await session.subscribe("somebody", answer)
    asking = asyncio.create_task(session.confirmed("somebody", b"", [30.0], 60.0))
    await asyncio.sleep(0)  # It has asked.
    if listens:
        await asyncio.wait_for(asked.wait(), 5)
    else:
        await until(lambda: not session._replies)
        await session.subscribe("somebody", answer)
    is_back = True
    nats_server.restart()
    assert await asyncio.wait_for(asking, 10)


async def test_silence_over_a_whole_schedule_ends_the_asking_and_so_does_the_timeout(
    session: Session, nats_server: NatsServer
) -> None:
    assert not await asyncio.wait_for(session.confirmed("nobody", b"", [0.01] * 3, 30.0), 5)
    assert not await asyncio.wait_for(session.confirmed("nobody", b"", [30.0], 0.05), 5)
    nats_server.kill()
    await until(lambda: not session.is_up)
    assert not await asyncio.wait_for(session.confirmed("nobody", b"", [0.01], 0.05), 5)
    nats_server.start()


async def test_what_our_own_callback_raises_is_an_error_and_the_connections_faults_are_not(
    session: Session, nats_server: NatsServer
) -> None:
    async def fail(msg) -> None:
        raise ValueError("a fault of ours")

    await session.subscribe("somebody", fail)
    with structlog.testing.capture_logs() as logs:
        await session.send("somebody", b"")
        [entry] = await until(lambda: [entry for entry in logs if entry["log_level"] == "error"])
        assert isinstance(entry["exc_info"], ValueError)
        nats_server.restart()
        await until(lambda: session.is_up and any(entry["event"] == "broker is back" for entry in logs))
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == [entry["event"]]
