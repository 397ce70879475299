"""The registry's care for the queue: lanes that are given up are answered, cleared, and never robbed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.rpc import code_pb2, status_pb2
from nats.aio.msg import Msg

from shoal.registry.v1 import registry_pb2
from shoal.work.v1 import work_pb2
from shoal_common import dead_letters, errors, lanes, limits, queue_setup, queue_survey, registry_state
from shoal_common.bucket import Bucket
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_common.queue_survey import Queue, QueueKey
from shoal_registry.queue_keeper import QueueKeeper
from shoal_registry.retired_lanes import GRACE_S
from shoal_registry.state import State
from shoal_registry.stuck_consumers import SURE_AFTER_S
from tests.support.broker import session_with
from tests.support.nats import NatsServer
from tests.support.service import Service
from tests.support.until import until
from tests.unit.common.fake_collector import FakeCollector


def model(name: str, digest: str) -> registry_pb2.Model:
    lane = lanes.Lane("default", digest)
    return registry_pb2.Model(
        name=name,
        profile_digest=digest,
        lane=registry_pb2.Lane(token=lane.token, pool=lane.pool, profile_digest=digest, shard=lane.shard),
    )


OLD, NEW = model("mine", "d0"), model("mine", "d1")


class Gateway:
    """Publishes units and takes their results, confirming each message."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.subject = f"shoal.result.{secrets.token_hex(8)}"
        self.results: dict[str, work_pb2.UnitResult] = {}

    async def listen(self) -> None:
        async def on_message(msg: Msg) -> None:
            for result in work_pb2.ResultBatch.FromString(msg.data).results:
                self.results[result.unit_id] = result
            await self.session.send(msg.reply)

        await self.session.subscribe(self.subject, on_message)

    async def publish(self, token: str, work_class: str, unit_id: str, remaining_ms: int = 60_000) -> None:
        unit = work_pb2.Unit(id=unit_id, reply_subject=self.subject, remaining_ms=remaining_ms)
        await self.publish_bytes(token, work_class, unit.SerializeToString(), unit_id)

    async def publish_bytes(self, token: str, work_class: str, payload: bytes, msg_id: str) -> None:
        await self.session.publish(lanes.work_subject(token, work_class), payload, msg_id=msg_id, timeout_s=5)

    def error_of(self, unit_id: str) -> errors.CallError:
        return errors.from_status(status_pb2.Status.FromString(self.results[unit_id].error))


class Mesh:
    """A keeper over a state that the test writes, and a gateway."""

    def __init__(self, session: Session, others: Session) -> None:
        self.session = session
        self.state = State()
        self.keeper = QueueKeeper(session, self.state, 1, lambda: True)
        self.gateway = Gateway(others)

    async def clear(self) -> None:
        """Two rounds: one sees what is retired, the other comes after its grace."""
        await self.keeper.round(0.0)
        await self.keeper.round(GRACE_S)

    async def consumers(self, token: str) -> int:
        answer = await self.session.api(f"CONSUMER.NAMES.{lanes.stream_name(lanes.shard_of(token))}")
        return sum(name.startswith(token) for name in answer["consumers"] or [])

    async def waiting(self, token: str) -> int:
        stream = lanes.stream_name(lanes.shard_of(token))
        info = await self.session.api(f"STREAM.INFO.{stream}", {"subjects_filter": f"shoal.work.*.{token}.>"})
        return sum((info["state"].get("subjects") or {}).values())


@pytest.fixture
async def mesh(nats_server: NatsServer) -> AsyncIterator[Mesh]:
    async with session_with(nats_server) as session, session_with(nats_server, "gateway") as others:
        mesh = Mesh(session, others)
        await mesh.gateway.listen()
        mesh.state.put_model(OLD, 1)
        await mesh.keeper.round(0.0)
        yield mesh


async def test_a_round_makes_the_streams_and_each_lanes_consumers(mesh: Mesh):
    assert await mesh.consumers(OLD.lane.token) == len(lanes.CLASSES)
    for name in (*map(lanes.stream_name, range(limits.SHARDS)), lanes.DEAD_LETTER_STREAM):
        await mesh.session.api(f"STREAM.INFO.{name}")


async def test_making_the_queue_again_changes_nothing(mesh: Mesh):
    await mesh.gateway.publish(OLD.lane.token, "bulk", "u0")
    await queue_setup.ensure_streams(mesh.session)
    await queue_setup.ensure_consumers(mesh.session, OLD.lane.token)
    assert await mesh.waiting(OLD.lane.token) == 1


async def test_a_stream_of_another_config_is_brought_up_to_ours(mesh: Mesh):
    config = lanes.stream_config(0).as_dict()
    await mesh.session.api(f"STREAM.UPDATE.{config['name']}", {**config, "max_msgs_per_subject": 7})
    await queue_setup.ensure_streams(mesh.session)
    info = await mesh.session.api(f"STREAM.INFO.{config['name']}")
    assert info["config"]["max_msgs_per_subject"] == limits.LANE_UNITS


async def test_work_of_a_deleted_model_is_answered_not_found(mesh: Mesh):
    token = OLD.lane.token
    mesh.state.remove_model("mine", 2)
    for n in range(30):
        await mesh.gateway.publish(token, ("bulk", "interactive")[n % 2], f"u{n}")
    await mesh.keeper.round(0.0)
    assert not mesh.gateway.results, "workers have the grace to finish"
    await mesh.keeper.round(GRACE_S)
    assert set(mesh.gateway.results) == {f"u{n}" for n in range(30)}
    assert all(result.last for result in mesh.gateway.results.values())
    error = mesh.gateway.error_of("u0")
    assert (error.code, error.reason) == (code_pb2.NOT_FOUND, "MODEL_NOT_FOUND")
    assert "mine" in error.message
    assert await mesh.waiting(token) == 0
    assert await mesh.consumers(token) == 0


async def test_work_of_a_replaced_revision_is_to_be_sent_again(mesh: Mesh):
    await mesh.gateway.publish(OLD.lane.token, "bulk", "u0")
    mesh.state.put_model(NEW, 2)
    await mesh.clear()
    error = mesh.gateway.error_of("u0")
    assert (error.code, error.reason) == (code_pb2.UNAVAILABLE, "REVISION_REPLACED")
    assert await mesh.consumers(OLD.lane.token) == 0
    assert await mesh.consumers(NEW.lane.token) == len(lanes.CLASSES)


async def test_units_that_a_worker_holds_stay_its_own(mesh: Mesh):
    token = OLD.lane.token
    await mesh.gateway.publish(token, "bulk", "held")
    held = await pulled(mesh.session, token)
    mesh.state.remove_model("mine", 2)
    await mesh.clear()
    assert "held" not in mesh.gateway.results
    assert await mesh.consumers(token) == len(lanes.CLASSES), "its ack needs the consumer"
    await mesh.session.send(held.reply, b"+ACK")

    async def acked() -> bool:
        return await mesh.waiting(token) == 0

    await until(acked, 5, "the worker's ack was lost")
    await mesh.keeper.round(2 * GRACE_S)
    assert await mesh.consumers(token) == 0


async def test_work_left_without_consumers_is_found(mesh: Mesh, nats_server: NatsServer):
    """After a broker restart a retired lane has messages and no consumers."""
    token = OLD.lane.token
    await mesh.gateway.publish(token, "bulk", "u0")
    mesh.state.remove_model("mine", 2)
    nats_server.restart()
    await mesh.gateway.session.wait_up(10)
    await mesh.clear()
    assert mesh.gateway.error_of("u0").code == code_pb2.NOT_FOUND
    assert (await mesh.waiting(token), await mesh.consumers(token)) == (0, 0)


async def test_expired_units_and_garbage_are_cleared_without_an_answer(mesh: Mesh):
    token = OLD.lane.token
    await mesh.gateway.publish(token, "bulk", "expired", remaining_ms=0)
    await mesh.gateway.publish_bytes(token, "bulk", b"\xff\xff", "garbage")
    mesh.state.remove_model("mine", 2)
    await mesh.clear()
    assert not mesh.gateway.results
    assert (await mesh.waiting(token), await mesh.consumers(token)) == (0, 0)
    [letter] = (await dead_letters.read(mesh.session, count=10)).letters
    assert (letter.content.unit, letter.content.reason, letter.lane) == (b"\xff\xff", "MALFORMED_UNIT", token)


async def test_a_gateway_that_is_gone_does_not_hold_the_lane(mesh: Mesh):
    unit = work_pb2.Unit(id="u0", reply_subject="shoal.result.nobody", remaining_ms=60_000)
    await mesh.gateway.publish_bytes(OLD.lane.token, "bulk", unit.SerializeToString(), "u0")
    mesh.state.remove_model("mine", 2)
    await mesh.clear()
    assert (await mesh.waiting(OLD.lane.token), await mesh.consumers(OLD.lane.token)) == (0, 0)


async def test_a_reconnect_makes_missing_consumers_at_once(mesh: Mesh, nats_server: NatsServer):
    mesh.session.on_reconnect(mesh.keeper.wake)
    running = asyncio.create_task(mesh.keeper.run())
    nats_server.restart()

    async def made() -> bool:
        with contextlib.suppress(ApiError):
            return await mesh.consumers(OLD.lane.token) == len(lanes.CLASSES)
        return False

    await until(made, 5, "consumers were not made anew")
    running.cancel()


# Consumers that do not see their units.


async def test_a_consumer_that_does_not_see_its_units_is_made_anew(mesh: Mesh):
    key = QueueKey(OLD.lane.token, "bulk")
    await blinded(mesh, key, units=5)
    await mesh.gateway.publish(key.lane, "interactive", "other")
    await mesh.keeper.round(100.0)
    assert (await survey(mesh))[key].waiting_units == 0, "one look may have met a moment between two"
    await mesh.keeper.round(100.0 + SURE_AFTER_S)
    made = (await survey(mesh))[key]
    assert (made.stored_units, made.waiting_units, made.in_flight_units) == (5, 5, 0)
    consumer = await queue_survey.consumer(mesh.session, key)
    assert consumer["config"].get("max_deliver", -1) == -1, "the new one is as all are"
    assert await drained(mesh, key) == {f"blind-{n}" for n in range(5)}, "nothing lost, nothing twice"
    assert (await survey(mesh))[QueueKey(key.lane, "interactive")].waiting_units == 1


async def test_a_keeper_left_to_itself_mends_it_within_seconds(mesh: Mesh):
    key = QueueKey(OLD.lane.token, "bulk")
    await blinded(mesh, key, units=1)
    running = asyncio.create_task(mesh.keeper.run())

    async def seen() -> bool:
        return (await survey(mesh))[key].waiting_units == 1

    await until(seen, 3 * SURE_AFTER_S, "the unit was not seen again")
    running.cancel()


async def test_a_consumer_with_units_in_flight_is_left_alone(mesh: Mesh):
    key = QueueKey(OLD.lane.token, "bulk")
    await mesh.gateway.publish(key.lane, "bulk", "held")
    await pulled(mesh.session, key.lane)
    created = (await queue_survey.consumer(mesh.session, key))["created"]
    for n in range(3):
        await mesh.keeper.round(100.0 + n * SURE_AFTER_S)
    assert (await queue_survey.consumer(mesh.session, key))["created"] == created


async def test_a_busy_lane_is_never_taken_for_stuck(mesh: Mesh):
    """Each unit is acked at once, so that a look may find units stored and none waiting or in flight."""
    key = QueueKey(OLD.lane.token, "bulk")
    created = (await queue_survey.consumer(mesh.session, key))["created"]
    served = 0

    async def serve() -> None:
        nonlocal served
        while True:
            await mesh.gateway.publish(key.lane, "bulk", f"busy-{served}")
            await mesh.gateway.session.send((await pulled(mesh.gateway.session, key.lane)).reply, b"+ACK")
            served += 1

    serving = asyncio.create_task(serve())
    for n in range(30):
        await mesh.keeper.round(100.0 + n * SURE_AFTER_S)
    serving.cancel()
    assert served > 30
    assert (await queue_survey.consumer(mesh.session, key))["created"] == created


async def test_a_broker_that_is_away_is_one_plain_error(mesh: Mesh, nats_server: NatsServer):
    """The keeper goes on after it; a group of errors would end the registry."""
    nats_server.kill()
    with pytest.raises(BrokerTimeout):
        await mesh.keeper.round(0.0)
    nats_server.start()


async def test_what_waits_and_what_was_mended_is_measured(nats_server: NatsServer, tmp_path: Path):
    with FakeCollector() as collector:
        service = Service(
            "shoal_registry", tmp_path, env=collector.env, nats_url=nats_server.url, nats_token=nats_server.token
        )
        service.start()
        try:
            await service.serving(30)
            async with session_with(nats_server) as session:
                await _measured(session, collector)
        finally:
            service.kill()


async def _measured(session: Session, collector: FakeCollector) -> None:
    bucket = registry_state.bucket(session)
    model = await until(lambda: registered(bucket), 20, "the first model is registered")
    mesh, key = Mesh(session, session), QueueKey(model.lane.token, "bulk")
    await blinded(mesh, key, units=2)
    for n in range(3):
        await mesh.gateway.publish(key.lane, "interactive", f"waits-{n}")
    retired = lanes.Lane("default", "an older revision").token
    await mesh.gateway.publish_bytes(retired, "bulk", b"\xff\xff", "garbage")
    gauges, sums = collector.gauges, collector.sums
    await until(lambda: gauges.get(("shoal.queue.waiting_units", "class=interactive,model=minilm")) == 3, 30)
    await until(lambda: gauges.get(("shoal.queue.oldest_waiting", "class=interactive,model=minilm"), 0) > 100, 30)
    await until(lambda: sums.get(("shoal.registry.remade_consumers", "bulk")) == 1, 30)
    await until(lambda: gauges.get(("shoal.queue.waiting_units", "class=bulk,model=minilm")) == 2, 30)
    await until(lambda: sums.get(("shoal.dead_letters", "MALFORMED_UNIT")) == 1, 30)


async def registered(bucket: Bucket) -> registry_pb2.Model | None:
    with contextlib.suppress(BrokerTimeout, ApiError):
        return next(iter(registry_state.decode(await bucket.read()).models), None)


async def survey(mesh: Mesh) -> dict[QueueKey, Queue]:
    return await queue_survey.survey(mesh.session)


async def blinded(mesh: Mesh, key: QueueKey, units: int) -> None:
    """Brings a queue into the state: a consumer that gives up after one delivery has units that it knows no more."""
    stream = lanes.stream_name(lanes.shard_of(key.lane))
    config = {**lanes.consumer_config(*key).as_dict(), "max_deliver": 1, "ack_wait": 100_000_000}
    await queue_setup.delete_consumer(mesh.session, *key)
    operation = f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
    await mesh.session.api(operation, {"stream_name": stream, "config": config})
    for n in range(units):
        await mesh.gateway.publish(key.lane, key.work_class, f"blind-{n}")
        await pulled(mesh.session, key.lane)

    async def is_blind() -> bool:
        queue = (await survey(mesh))[key]
        return (queue.stored_units, queue.waiting_units, queue.in_flight_units) == (units, 0, 0)

    await until(is_blind, 5, "the consumer still knows of units")


async def drained(mesh: Mesh, key: QueueKey) -> set[str]:
    """The ids of all units of a queue, pulled and acked once each."""
    ids: list[str] = []
    while (await survey(mesh))[key].waiting_units:
        message = await pulled(mesh.session, key.lane)
        ids.append(work_pb2.Unit.FromString(message.data).id)
        await mesh.session.send(message.reply, b"+ACK")
    assert len(ids) == len(set(ids))
    return set(ids)


async def pulled(session: Session, token: str) -> Msg:
    """One unit of the bulk class, delivered and not acked."""
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    arrived: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def on_message(msg: Msg) -> None:
        arrived.set_result(msg)

    subscription = await session.subscribe(inbox, on_message)
    stream, consumer = lanes.stream_name(lanes.shard_of(token)), lanes.consumer_name(token, "bulk")
    request = json.dumps({"batch": 1, "expires": 5_000_000_000}).encode()
    await session.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", request, reply=inbox)
    async with asyncio.timeout(5):
        message = await arrived
    await subscription.unsubscribe()
    return message
