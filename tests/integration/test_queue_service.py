"""QueueService over a real broker: what the lanes show, and dead letters listed, put back and dropped."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from nats.aio.msg import Msg

from shoal.scheduler.v1 import scheduler_pb2
from shoal.v1 import inference_pb2 as pb
from shoal.v1 import models_pb2, queue_pb2, queue_pb2_grpc
from shoal.work.v1 import work_pb2
from shoal_common import blobs, dead_letters, lanes, limits, queue_setup, tokens
from shoal_common.tokens import TokenEntry
from shoal_gateway import queue_service, requeueing
from tests.support.nats import NatsServer
from tests.support.refusal import refused
from tests.support.until import until
from tests.unit.gateway.fake_mesh import FakeMesh

READY = scheduler_pb2.RESIDENCY_READY


class Queue:
    """A gateway's QueueService, and a way to fill what it shows."""

    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh
        self.stub: Any = queue_pb2_grpc.QueueServiceStub(mesh.channel)

    async def lanes(self) -> queue_pb2.ListLanesResponse:
        return await self.stub.ListLanes(queue_pb2.ListLanesRequest())

    async def lane(self) -> queue_pb2.Lane:
        """The registered model's."""
        return (await self.lanes()).lanes[0]

    async def letters(self, **fields: Any) -> queue_pb2.ListDeadLettersResponse:
        return await self.stub.ListDeadLetters(queue_pb2.ListDeadLettersRequest(**fields))

    async def sequences(self, **fields: Any) -> list[int]:
        return [letter.sequence for letter in (await self.letters(**fields)).letters]

    async def requeue(self, **which: Any) -> queue_pb2.RequeueDeadLettersResponse:
        return await self.stub.RequeueDeadLetters(queue_pb2.RequeueDeadLettersRequest(**which))

    async def drop(self, **which: Any) -> queue_pb2.DropDeadLettersResponse:
        return await self.stub.DropDeadLetters(queue_pb2.DropDeadLettersRequest(**which))

    def unit(self, **fields: Any) -> work_pb2.Unit:
        values: dict[str, Any] = {
            "id": f"u-{secrets.token_hex(4)}",
            "request_id": "request-1",
            "reply_subject": "shoal.result.gone",
            "tenant": "acme",
            "remaining_ms": 2_000,
            "work_class": work_pb2.WORK_CLASS_BULK,
            "task": work_pb2.TASK_ENCODE,
            "profile_digest": self.mesh.profile.digest(),
            "items": [pb.Item(text="dead").SerializeToString()],
        }
        return work_pb2.Unit(**(values | fields))

    async def bury(self, unit: bytes, reason: str = "DELIVERY_LIMIT", lane: str = "", detail: str = "given up") -> None:
        """Keeps a dead letter, as a worker would."""
        subject = lanes.work_subject(lane or self.mesh.lane.token, "bulk")
        sequence = secrets.randbelow(2**40)
        assert await dead_letters.keep(
            self.mesh.session,
            subject=subject,
            sequence=sequence,
            unit=unit,
            reason=reason,
            detail=detail,
            deliveries=21,
        )


@pytest.fixture
async def queue(nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    monkeypatch.setattr(queue_service, "FRESH_S", 0.0)
    async with FakeMesh(nats_server, tmp_path) as mesh:
        await queue_setup.ensure_consumers(mesh.session, mesh.lane.token)
        yield Queue(mesh)


# Lanes.


async def test_an_idle_lane(queue: Queue) -> None:
    await queue.mesh.lane_is(READY, workers=1, wait_ms=2.5, drain_ms_per_second=900.0, queued_ms=2.25)
    queue.mesh.scheduler.workers = [
        scheduler_pb2.ReportRequest(
            worker="worker-0",
            machine="host",
            device=scheduler_pb2.Device(name="cuda:0"),
            busy_share=0.5,
            lanes=[scheduler_pb2.WorkerLane(lane=queue.mesh.lane.token, residency=READY, backlog_ms=3.5)],
        ),
        scheduler_pb2.ReportRequest(worker="elsewhere", lanes=[scheduler_pb2.WorkerLane(lane="another")]),
    ]
    response = await queue.lanes()
    assert response.scheduler_known and not response.dead_letters
    [lane] = response.lanes
    assert lane == queue_pb2.Lane(
        token=queue.mesh.lane.token,
        model="minilm",
        revision=queue.mesh.profile.digest(),
        pool=queue.mesh.lane.pool,
        state=models_pb2.MODEL_STATE_READY,
        queued_ms=2.25,
        drain_ms_per_second=900.0,
        wait_ms=2.5,
        classes=[
            queue_pb2.LaneClass(priority=pb.PRIORITY_INTERACTIVE, open=True),
            queue_pb2.LaneClass(priority=pb.PRIORITY_BULK, open=True),
        ],
        workers=[
            queue_pb2.LaneWorker(
                worker="worker-0",
                machine="host",
                device="cuda:0",
                state=models_pb2.MODEL_STATE_READY,
                backlog_ms=3.5,
                busy_share=0.5,
            )
        ],
    )


async def test_waiting_in_flight_and_the_age_of_the_oldest_that_waits(queue: Queue) -> None:
    token, session = queue.mesh.lane.token, queue.mesh.session
    subject = lanes.work_subject(token, "bulk")
    for n in range(5):
        await session.publish(subject, queue.unit().SerializeToString(), msg_id=f"m{n}", timeout_s=5)
    pulled: list[Msg] = []

    async def on_message(msg: Msg) -> None:
        pulled.append(msg)

    await session.subscribe("_INBOX.pull", on_message)
    operation = (
        f"$JS.API.CONSUMER.MSG.NEXT.{lanes.stream_name(lanes.shard_of(token))}.{lanes.consumer_name(token, 'bulk')}"
    )
    await session.send(operation, json.dumps({"batch": 2, "expires": 5_000_000_000}).encode(), reply="_INBOX.pull")
    await until(lambda: len(pulled) == 2)
    third = await session.api(f"STREAM.MSG.GET.{lanes.stream_name(lanes.shard_of(token))}", {"seq": 3})

    interactive, bulk = (await queue.lane()).classes
    assert (interactive.waiting_units, interactive.in_flight_units, interactive.oldest_waiting_ms) == (0, 0, 0)
    assert (bulk.waiting_units, bulk.in_flight_units) == (3, 2)

    async def aged() -> bool:
        """The oldest that waits is the third, not the first, which is in a worker's hands."""
        age_ms = (await queue.lane()).classes[1].oldest_waiting_ms
        _, third_s = third["message"]["seq"], _seconds(third["message"]["time"])
        return age_ms > 150 and abs(session.clock.now_s() - third_s - age_ms / 1e3) < 0.1

    await until(aged, 5, "the age does not grow with the third unit's")


async def test_a_lane_without_consumers_and_one_without_a_model(queue: Queue) -> None:
    session = queue.mesh.session
    retired = lanes.Lane("default", "an older revision").token
    unit = queue.unit()
    await session.publish(lanes.work_subject(retired, "bulk"), unit.SerializeToString(), msg_id=unit.id, timeout_s=5)
    await queue_setup.delete_consumers(session, queue.mesh.lane.token)
    registered, other = (await queue.lanes()).lanes
    assert registered.model == "minilm" and not any(each.open for each in registered.classes)
    assert (other.token, other.model, other.revision) == (retired, "", "")
    assert [each.waiting_units for each in other.classes] == [0, 1]


async def test_a_scheduler_that_is_away_costs_the_states_only(queue: Queue) -> None:
    async def gone(address: str) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal_gateway.fleet.workers", gone)
        response = await queue.lanes()
    assert not response.scheduler_known and not response.lanes[0].workers and len(response.lanes[0].classes) == 2


async def test_a_broker_that_is_away_is_unavailable(queue: Queue) -> None:
    queue.mesh.broker.kill()
    await refused(queue.lanes(), grpc.StatusCode.UNAVAILABLE, "QUEUE_UNAVAILABLE")
    await refused(queue.letters(), grpc.StatusCode.UNAVAILABLE, "QUEUE_UNAVAILABLE")
    await refused(queue.requeue(all=True), grpc.StatusCode.UNAVAILABLE, "QUEUE_UNAVAILABLE")
    queue.mesh.broker.start()
    await queue.mesh.session.wait_up(10)
    assert len((await queue.lanes()).lanes) == 1


# Dead letters.


async def test_a_letter_tells_what_its_unit_says(queue: Queue) -> None:
    unit = queue.unit(id="u1")
    await queue.bury(unit.SerializeToString())
    [letter] = (await queue.letters()).letters
    assert abs(letter.kept_unix_ms / 1e3 - queue.mesh.session.clock.now_s()) < 5
    assert letter == queue_pb2.DeadLetter(
        sequence=1,
        kept_unix_ms=letter.kept_unix_ms,
        reason="DELIVERY_LIMIT",
        detail="given up",
        model="minilm",
        lane=queue.mesh.lane.token,
        priority=pb.PRIORITY_BULK,
        deliveries=21,
        unit_id="u1",
        request_id="request-1",
        tenant="acme",
        items=1,
        size_bytes=unit.ByteSize(),
    )
    await queue.bury(b"\xff garbage", "MALFORMED_UNIT")
    second = (await queue.letters(after_sequence=1)).letters[0]
    assert (second.unit_id, second.tenant, second.items, second.size_bytes) == ("", "", 0, 9)
    assert {each.reason: each.letters for each in (await queue.lanes()).dead_letters} == {
        "DELIVERY_LIMIT": 1,
        "MALFORMED_UNIT": 1,
    }


async def test_letters_are_listed_by_the_page(queue: Queue) -> None:
    for n in range(7):
        await queue.bury(queue.unit().SerializeToString(), "A" if n % 2 else "B")
    page = await queue.letters(limit=3)
    assert ([letter.sequence for letter in page.letters], page.remaining) == ([1, 2, 3], 4)
    page = await queue.letters(limit=100, after_sequence=3)
    assert ([letter.sequence for letter in page.letters], page.remaining) == ([4, 5, 6, 7], 0)
    assert await queue.sequences(reason="A") == [2, 4, 6]
    assert await queue.sequences(reason="NO_SUCH") == [] == await queue.sequences(after_sequence=2**64 - 1)


async def test_a_requeued_unit_is_served_as_new(queue: Queue) -> None:
    """Even while workers and the broker remember the dead one's id; its late answer is dropped."""
    unit = queue.unit(put_backs=3)
    await queue.bury(unit.SerializeToString())
    response = await queue.requeue(sequences=[1])
    assert response == queue_pb2.RequeueDeadLettersResponse(requeued=1)
    assert await queue.sequences() == []
    queue.mesh.start_worker()
    await until(lambda: queue.mesh.worker.units)
    [served] = queue.mesh.worker.units
    [message] = queue.mesh.worker.messages
    assert served.id != unit.id and (message.headers or {})["Nats-Msg-Id"] == served.id
    assert message.metadata.num_delivered == 1
    assert served.remaining_ms == limits.DEADLINE_DEFAULT_S * 1000
    served.id, served.remaining_ms, served.put_backs = unit.id, unit.remaining_ms, unit.put_backs
    assert served == unit, "all else is as it was"


async def test_a_long_deadline_stays(queue: Queue) -> None:
    await queue.bury(queue.unit(remaining_ms=120_000).SerializeToString())
    await queue.requeue(all=True)
    queue.mesh.start_worker()
    await until(lambda: queue.mesh.worker.units)
    assert queue.mesh.worker.units[0].remaining_ms == 120_000


async def test_each_letter_that_cannot_go_back_is_told_why(queue: Queue) -> None:
    retired = lanes.Lane("default", "an older revision").token
    await queue.bury(b"\xff garbage", "MALFORMED_UNIT")
    await queue.bury(queue.unit(reply_subject="").SerializeToString(), "MALFORMED_UNIT")
    await queue.bury(queue.unit(items=[]).SerializeToString(), "MALFORMED_UNIT")
    await queue.bury(bytes(limits.DEAD_LETTER_UNIT_BYTES + 1), "MALFORMED_UNIT")
    await queue.bury(queue.unit().SerializeToString(), lane=retired)
    blob = work_pb2.Blob(key=blobs.key_of(blobs.ITEMS, "u1", 0), size_bytes=600_000, sha256=bytes(32))
    await queue.bury(queue.unit(id="u1", items=[b""], blobs=[blob]).SerializeToString())
    await queue.bury(queue.unit().SerializeToString())
    response = await queue.requeue(sequences=[7, 99, 1, 2, 3, 4, 5, 6])
    assert (response.requeued, response.refused) == (1, 7)
    assert [(each.sequence, each.reason) for each in response.refusals] == [
        (1, "MALFORMED_UNIT"),
        (2, "MALFORMED_UNIT"),
        (3, "MALFORMED_UNIT"),
        (4, "MALFORMED_UNIT"),
        (5, "LANE_RETIRED"),
        (6, "BLOBS_REMOVED"),
        (99, "DEAD_LETTER_NOT_FOUND"),
    ]
    assert all(each.message for each in response.refusals)
    assert await queue.sequences() == [1, 2, 3, 4, 5, 6], "they stay"


async def test_a_full_lane_keeps_the_letters(queue: Queue) -> None:
    stream = lanes.stream_name(queue.mesh.lane.shard)
    config = (await queue.mesh.session.api(f"STREAM.INFO.{stream}"))["config"]
    await queue.mesh.session.api(f"STREAM.UPDATE.{stream}", config | {"max_msgs_per_subject": 2})
    for _ in range(5):
        await queue.bury(queue.unit().SerializeToString())
    response = await queue.requeue(all=True)
    assert (response.requeued, response.refused) == (2, 3)
    assert {each.reason for each in response.refusals} == {"LANE_FULL"}
    assert len(await queue.sequences()) == 3


async def test_requeueing_by_reason_and_all_goes_through_all_pages(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_service, "PAGE_LETTERS", 4)
    for n in range(20):
        await queue.bury(queue.unit().SerializeToString(), "A" if n % 2 else "B")
    assert (await queue.requeue(reason="A")).requeued == 10
    assert len(await queue.sequences()) == 10
    assert (await queue.requeue(all=True)).requeued == 10
    assert await queue.sequences() == []
    assert await queue.mesh.pending_units() == 20
    assert (await queue.requeue(all=True)).requeued == 0


async def test_a_letter_requeued_twice_at_once_is_one_unit(queue: Queue) -> None:
    """As after a gateway that died between the unit and the letter."""
    await queue.bury(queue.unit().SerializeToString())
    letter = await dead_letters.get(queue.mesh.session, 1)
    assert letter is not None
    await requeueing.requeue(queue.mesh.session, letter, {queue.mesh.lane.token})
    await requeueing.requeue(queue.mesh.session, letter, {queue.mesh.lane.token})
    assert await queue.mesh.pending_units() == 1


async def test_letters_are_dropped(queue: Queue) -> None:
    for n in range(6):
        await queue.bury(queue.unit().SerializeToString(), "A" if n % 2 else "B")
    assert await queue.drop(sequences=[1, 99, 3, 3]) == queue_pb2.DropDeadLettersResponse(dropped=2, not_found=[99])
    assert (await queue.drop(reason="A")).dropped == 3
    assert await queue.sequences() == [5]
    assert (await queue.drop(all=True)).dropped == 1
    assert (await queue.drop(all=True)).dropped == 0
    assert await queue.mesh.pending_units() == 0


@pytest.mark.parametrize("call", ["requeue", "drop"])
async def test_which_letters_must_be_said_in_one_way(queue: Queue, call: str) -> None:
    async def bad(field: str, **which: Any) -> None:
        await refused(
            getattr(queue, call)(**which),
            grpc.StatusCode.INVALID_ARGUMENT,
            "LIMIT_EXCEEDED" if "1001" in field else "INVALID_FIELD",
            field.split()[0],
        )

    await queue.bury(queue.unit().SerializeToString())
    await bad("sequences")
    await bad("sequences", sequences=[1], all=True)
    await bad("sequences", sequences=[0])
    await bad("sequences 1001", sequences=range(1, limits.DEAD_LETTERS_NAMED + 2))
    for reason in ("*", "A.B", "lower", ">", "A B", "A" * 65):
        await bad("reason", reason=reason)
    assert await queue.sequences() == [1]


async def test_a_page_has_a_limit(queue: Queue) -> None:
    too_many = limits.DEAD_LETTERS_LISTED + 1
    await refused(queue.letters(limit=too_many), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "limit")
    await refused(queue.letters(reason="a*"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "reason")


async def test_all_of_it_needs_the_scope_admin(nats_server: NatsServer, tmp_path: Path) -> None:
    allowed = {"caller": ["infer"], "ops": ["admin"]}
    entries = [
        TokenEntry.model_validate({"sha256": tokens.digest(token), "tenant": token, "scopes": scopes})
        for token, scopes in allowed.items()
    ]
    (tmp_path / "tokens.yaml").write_text(tokens.written(entries))
    async with FakeMesh(nats_server, tmp_path, tokens=str(tmp_path / "tokens.yaml")) as mesh:
        stub: Any = queue_pb2_grpc.QueueServiceStub(mesh.channel)
        calls = [
            (stub.ListLanes, queue_pb2.ListLanesRequest()),
            (stub.ListDeadLetters, queue_pb2.ListDeadLettersRequest()),
            (stub.RequeueDeadLetters, queue_pb2.RequeueDeadLettersRequest(all=True)),
            (stub.DropDeadLetters, queue_pb2.DropDeadLettersRequest(all=True)),
        ]
        for method, asked in calls:
            denied = method(asked, metadata=(("authorization", "Bearer caller"),))
            await refused(denied, grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
            await method(asked, metadata=(("authorization", "Bearer ops"),))


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
