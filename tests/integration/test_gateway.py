"""The gateway over a real broker: answers, refusals, deadlines, cancellation, streams, and a broker that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from shoal.scheduler.v1 import scheduler_pb2
from shoal.v1 import inference_pb2 as pb
from shoal.v1 import models_pb2
from shoal.work.v1 import work_pb2
from shoal_common import errors, grpc_server, limits, queue_setup
from shoal_gateway import dispatch
from tests.support.nats import NatsServer
from tests.support.raw import Refusal
from tests.support.until import until
from tests.unit.common.fake_collector import FakeCollector
from tests.unit.gateway.fake_mesh import FakeMesh
from tests.unit.gateway.fake_worker import item_result, silent, whole

SHORT_S = 0.4


@pytest.fixture
async def mesh(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[FakeMesh]:
    async with FakeMesh(nats_server, tmp_path) as running:
        yield running


@pytest.fixture
async def served(mesh: FakeMesh) -> FakeMesh:
    mesh.start_worker()
    return mesh


def request(*texts: str, **fields) -> pb.EncodeRequest:
    return pb.EncodeRequest(**{"model": "minilm", "items": [pb.Item(text=text) for text in texts], **fields})


def infer(request_id: str, *texts: str, deadline_ms: int = 0, **fields) -> pb.InferRequest:
    return pb.InferRequest(request_id=request_id, deadline_ms=deadline_ms, encode=request(*texts, **fields))


def echoed(response: pb.EncodeResponse) -> list[str]:
    return [result.dense.data.decode() for result in response.results]


def texts(count: int) -> list[str]:
    return [f"text {n}" for n in range(count)]


# Answers.


async def test_three_units_are_answered_in_request_order(served: FakeMesh) -> None:
    response = await served.encode(request(*texts(70)))
    assert echoed(response) == texts(70)
    assert [(run.first_index, run.count) for run in response.provenance.runs] == [(0, 32), (32, 32), (64, 6)]
    assert response.provenance.model == "minilm" and response.provenance.revision == served.profile.digest()
    assert served.worker.unconfirmed == 0


async def test_a_unit_says_all_that_a_worker_needs(served: FakeMesh) -> None:
    options = pb.EncodeOptions(dimensions=7)
    call = served.call(request("a" * 400, options=options, priority=pb.PRIORITY_BULK), 5.0, x_request_id="mine-1")
    await call
    assert ("x-request-id", "mine-1") in tuple(await call.trailing_metadata())
    (unit,) = served.worker.units
    assert unit.request_id == "mine-1" and not unit.id.startswith("mine-1")
    assert (unit.work_class, unit.task) == (work_pb2.WORK_CLASS_BULK, work_pb2.TASK_ENCODE)
    assert unit.profile_digest == served.profile.digest() and unit.options == options.SerializeToString()
    assert unit.tenant == "default" and unit.estimated_tokens == 100 and unit.first_index == 0
    assert 4_000 < unit.remaining_ms <= 5_000
    (message,) = served.worker.messages
    assert message.subject.endswith(".bulk") and (message.headers or {})["Nats-Msg-Id"] == unit.id


async def test_one_bad_item_fails_alone(served: FakeMesh) -> None:
    response = await served.encode(request("good", "bad", "also good"))
    assert [result.status.reason for result in response.results] == ["", "ITEM_EMPTY", ""]
    assert echoed(response) == ["good", "", "also good"]


async def test_an_oversize_item_is_answered_by_the_gateway(served: FakeMesh) -> None:
    longest = "a" * limits.TEXT_BYTES
    response = await served.encode(request("first", longest + "a", longest, "last"))
    assert [result.status.reason for result in response.results] == ["", "ITEM_TOO_LARGE", "", ""]
    assert echoed(response) == ["first", "", longest, "last"]
    assert sorted(unit.first_index for unit in served.worker.units) == [0, 2, 3]


async def test_nothing_is_queued_if_no_item_can_be(mesh: FakeMesh) -> None:
    response = await mesh.encode(request("a" * (limits.TEXT_BYTES + 1)))
    assert [result.status.reason for result in response.results] == ["ITEM_TOO_LARGE"]
    assert await mesh.pending_units() == 0


async def test_as_many_items_as_are_allowed_and_one_more(served: FakeMesh) -> None:
    response = await served.encode(request(*texts(limits.REQUEST_ITEMS)), 30.0)
    assert echoed(response) == texts(limits.REQUEST_ITEMS)
    refusal = await served.refused(request(*texts(limits.REQUEST_ITEMS + 1)))
    assert refusal.fields == ["items"] and "2,048" in refusal.text and "2,049" in refusal.text


async def test_units_are_answered_in_any_order_and_twice(served: FakeMesh) -> None:
    held: list[work_pb2.Unit] = []

    def hold(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
        held.append(unit)
        return []

    served.worker.behaviour = hold
    call = served.call(request(*texts(96)))
    await until(lambda: len(held) == 3)
    for unit in sorted(held, key=lambda unit: -unit.first_index):
        await served.worker.send(unit, [whole(unit), whole(unit, worker="late", results=[b""] * len(unit.items))])
        await served.worker.send(unit, [whole(unit, worker="later")])
    assert echoed(pb.EncodeResponse.FromString(await call)) == texts(96)
    assert served.worker.unconfirmed == 0, "duplicates are confirmed too"


async def test_results_in_parts(served: FakeMesh) -> None:
    def parts(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
        results = [item_result(item) for item in unit.items]
        dead = whole(unit, worker="dead", sequence=0, last=False)
        del dead.results[1:]
        return [
            dead,
            whole(unit, sequence=1, offset=2, results=results[2:]),
            whole(unit, sequence=0, last=False, results=results[:2]),
        ]

    served.worker.behaviour = parts
    assert echoed(await served.encode(request(*texts(5)))) == texts(5)


# Refusals.


@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256)), b"\x0a\x02\xff\xfe"])
async def test_garbage_is_refused_and_the_gateway_goes_on(served: FakeMesh, garbage: bytes) -> None:
    refusal = await served.refused(garbage)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    assert len(refusal.request_id) == 32
    assert echoed(await served.encode(request("a"))) == ["a"]


async def test_refusals_name_what_is_wrong(mesh: FakeMesh) -> None:
    refusal = await mesh.refused(request("a", options=pb.EncodeOptions(dimensions=385)))
    assert refusal.fields == ["options.dimensions"] and "1 to 384" in refusal.text
    refusal = await mesh.refused(request("a", options=pb.EncodeOptions(type=77)))  # pyright: ignore[reportArgumentType]
    assert refusal.fields == ["options.type"] and "77" in refusal.text
    refusal = await mesh.refused(request("a", model="minilmm"))
    assert (refusal.code, refusal.reason, refusal.near) == (
        grpc.StatusCode.NOT_FOUND,
        "MODEL_NOT_FOUND",
        ["minilm"],
    )
    refusal = await mesh.refused(request("a", adapter="german-law"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")
    assert (await mesh.refused(request())).fields == ["items"]
    assert await mesh.pending_units() == 0


async def test_a_refusal_carries_the_callers_request_id(mesh: FakeMesh) -> None:
    call = mesh.call(b"\xff", x_request_id="mine-2")
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    assert ("x-request-id", "mine-2") in tuple(await call.trailing_metadata())


async def test_a_refusal_of_another_service_carries_it_too(mesh: FakeMesh) -> None:
    call = mesh.models.GetModel(models_pb2.GetModelRequest(model="none"), metadata=(("x-request-id", "mine-3"),))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert ("x-request-id", "mine-3") in tuple(await call.trailing_metadata())
    assert Refusal(refused.value).request_id == "mine-3"


async def test_a_unit_that_failed_as_a_whole_fails_the_call(served: FakeMesh) -> None:
    def fail(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
        if unit.first_index != 32:
            return []
        status = errors.unavailable("the device is gone", 1.0, "DEVICE_LOST").status(unit.request_id)
        return [whole(unit, results=[], error=status.SerializeToString())]

    served.worker.behaviour = fail
    refusal = await served.refused(request(*texts(70)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DEVICE_LOST")
    assert refusal.text == "the device is gone" and len(refusal.request_id) == 32
    await until(lambda: {unit.id for unit in served.worker.units} <= served.cancelled_ids)


@pytest.mark.parametrize("error", [b"", b"\xff", status_pb2.Status(code=99).SerializeToString()])
async def test_a_worker_that_answers_nonsense(served: FakeMesh, error: bytes) -> None:
    served.worker.behaviour = lambda unit: [whole(unit, results=[], error=error)]
    refusal = await served.refused(request("a", "b"))
    assert refusal.code is grpc.StatusCode.INTERNAL and len(refusal.request_id) == 32
    await served.session.send(served.worker.units[0].reply_subject, b"\xff\xff")
    served.worker.behaviour = lambda unit: [whole(unit)]
    assert echoed(await served.encode(request("a"))) == ["a"]


async def test_a_fault_of_ours_is_internal_with_an_id_and_no_traceback(
    mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(dispatch.units, "cut", fault)
    refusal = await mesh.refused(request("a"))
    assert refusal.code is grpc.StatusCode.INTERNAL and len(refusal.request_id) == 32
    assert b"secret" not in refusal.status.SerializeToString() and "secret" not in refusal.text


# Deadlines and lanes.


async def test_deadlines_that_nobody_could_keep(mesh: FakeMesh) -> None:
    for timeout_s in [0.0, 1e-6, 1e-4, 1e-3, 3e-3] * 10:
        refusal = await mesh.refused(request("a"), timeout_s)
        assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED, timeout_s
    stream = mesh.infer()
    await stream.send(infer("late", "a", deadline_ms=1))
    (answer,) = await stream.answers(1)
    assert answer.error.code == code_pb2.DEADLINE_EXCEEDED


async def test_at_the_deadline_the_answer_is_typed_and_the_units_are_cancelled(served: FakeMesh) -> None:
    served.worker.behaviour = silent
    refusal = await served.refused(request(*texts(40)), SHORT_S)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    await until(lambda: served.cancelled_ids == {unit.id for unit in served.worker.units} != set())
    assert all(message.remember_ms >= 1000 for message in served.cancelled)
    (unit, _) = served.worker.units
    await served.worker.send(unit, [whole(unit)])
    assert served.worker.unconfirmed == 0, "results that come too late are confirmed"


async def test_a_queue_that_stores_nothing_is_named(mesh: FakeMesh) -> None:
    await mesh.session.api(f"STREAM.DELETE.SHOAL_WORK_{mesh.lane.shard:02d}")
    refusal = await mesh.refused(request("a"), 1.5)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "QUEUE_UNAVAILABLE")


async def test_without_a_worker_the_answer_names_the_loading_model(mesh: FakeMesh) -> None:
    await mesh.lane_is(scheduler_pb2.RESIDENCY_LOADING, progress="weights 40 %")
    refusal = await mesh.refused(request("a"), SHORT_S)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING")
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert refusal.status.details[0].Unpack(info) and info.metadata["progress"] == "weights 40 %"
    assert refusal.status.details[1].Unpack(retry) and retry.retry_delay.ToMilliseconds() > 0


async def test_a_model_that_failed_to_load(mesh: FakeMesh) -> None:
    waiting = asyncio.create_task(mesh.refused(request("a", "b")))
    await until(mesh.pending_units)
    await mesh.lane_is(scheduler_pb2.RESIDENCY_FAILED, error="shape mismatch")
    for refusal in (await waiting, await mesh.refused(request("a"))):
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_FAILED")
        assert "shape mismatch" in refusal.text
    await until(lambda: len(mesh.cancelled_ids) == 1)


async def test_a_wait_that_does_not_fit_is_refused_at_once(mesh: FakeMesh) -> None:
    await mesh.lane_is(scheduler_pb2.RESIDENCY_READY, wait_ms=60_000.0)
    refusal = await mesh.refused(request("a"), 5.0)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert await mesh.pending_units() == 0


async def test_a_full_lane_is_refused(mesh: FakeMesh) -> None:
    stream = f"SHOAL_WORK_{mesh.lane.shard:02d}"
    config = (await mesh.session.api(f"STREAM.INFO.{stream}"))["config"]
    await mesh.session.api(f"STREAM.UPDATE.{stream}", config | {"max_msgs_per_subject": 2})
    waiting = mesh.call(request(*texts(64)))
    await until(lambda: _equals(mesh.pending_units(), 2))
    refusal = await mesh.refused(request("a"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LANE_FULL")
    waiting.cancel()


async def test_a_shard_that_holds_too_many_bytes_is_refused(mesh: FakeMesh) -> None:
    stream = f"SHOAL_WORK_{mesh.lane.shard:02d}"
    config = (await mesh.session.api(f"STREAM.INFO.{stream}"))["config"]
    assert config["max_bytes"] == limits.SHARD_BYTES
    await mesh.session.api(f"STREAM.UPDATE.{stream}", config | {"max_bytes": 100_000})
    waiting = mesh.call(request("a" * 80_000))
    await until(mesh.pending_units)
    refusal = await mesh.refused(request("b" * 80_000))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LANE_FULL")
    waiting.cancel()
    await queue_setup.ensure_streams(mesh.session)
    assert (await mesh.session.api(f"STREAM.INFO.{stream}"))["config"]["max_bytes"] == limits.SHARD_BYTES


async def test_what_does_not_fit_into_the_gateway_is_refused_or_read_later(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUESTS_BYTES", 100_000)
    async with FakeMesh(nats_server, tmp_path) as mesh:
        waiting = mesh.call(request("a" * 80_000))
        await until(mesh.pending_units)
        refusal = await mesh.refused(request("b" * 30_000))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "GATEWAY_FULL")
        retry = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(retry) for detail in refusal.status.details)
        stream = mesh.infer()
        await stream.send(*(infer(str(n), "c" * 30_000) for n in range(4)))
        mesh.start_worker()
        assert echoed(pb.EncodeResponse.FromString(await waiting)) == ["a" * 80_000]
        answers = await stream.answers(4)
        assert [echoed(answer.encode) for answer in answers] == [["c" * 30_000]] * 4
        assert echoed(await mesh.encode(request("d" * 80_000))) == ["d" * 80_000]


async def _equals(value, expected: object) -> bool:
    return await value == expected


# Callers that leave.


async def test_a_cancelled_call_cancels_its_units(served: FakeMesh) -> None:
    served.worker.behaviour = silent
    call = served.call(request(*texts(70)))
    await until(lambda: len(served.worker.units) == 3)
    call.cancel()
    await until(lambda: served.cancelled_ids == {unit.id for unit in served.worker.units})
    assert 8_000 < served.cancelled[0].remember_ms <= 10_000


async def test_a_caller_that_vanishes_cancels_its_streams_units(served: FakeMesh) -> None:
    served.worker.behaviour = silent
    stream = served.infer()
    await stream.send(*(infer(str(n), "a") for n in range(20)))
    await until(lambda: len(served.worker.units) == 20)
    stream.call.cancel()
    await until(lambda: served.cancelled_ids == {unit.id for unit in served.worker.units})
    assert len(served.cancelled) < 20, "cancellations are gathered"


# Infer.


async def test_answers_come_in_the_order_in_which_they_are_ready(served: FakeMesh) -> None:
    held: dict[bytes, work_pb2.Unit] = {}

    def hold(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
        held[pb.Item.FromString(unit.items[0]).text.encode()] = unit
        return []

    served.worker.behaviour = hold
    stream = served.infer()
    await stream.send(infer("1", "a"), infer("2", "b"), infer("3", "c"))
    await until(lambda: len(held) == 3)
    for text, request_id in ((b"c", "3"), (b"a", "1"), (b"b", "2")):
        await served.worker.send(held[text], [whole(held[text])])
        (answer,) = await stream.answers(1)
        assert (answer.request_id, answer.last, echoed(answer.encode)) == (request_id, True, [text.decode()])
    assert await stream.end() == []
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_many_pipelined_requests(served: FakeMesh) -> None:
    stream = served.infer()
    count = 5 * limits.INFER_IN_FLIGHT
    sending = asyncio.create_task(stream.send(*(infer(str(n), f"text {n}") for n in range(count))))
    answers = {answer.request_id: echoed(answer.encode) for answer in await stream.answers(count)}
    await sending
    assert answers == {str(n): [f"text {n}"] for n in range(count)}


async def test_a_bad_request_fails_alone(served: FakeMesh) -> None:
    stream = served.infer()
    await stream.send(
        infer("good", "first"),
        infer("unknown", "x", model="nope"),
        pb.InferRequest(request_id="nothing"),
        infer("", "no id"),
        b"\x0a\x04junk\x52\x03\xff\xff\xff",
        infer("i" * 257, "x"),
        infer("last", "second"),
    )
    answers = {answer.request_id: answer for answer in await stream.end()}
    assert echoed(answers.pop("good").encode) == ["first"] and echoed(answers.pop("last").encode) == ["second"]
    assert answers.pop("unknown").error.code == code_pb2.NOT_FOUND
    assert set(answers) == {"nothing", "", "junk", "i" * 257}
    assert {answer.error.code for answer in answers.values()} == {code_pb2.INVALID_ARGUMENT}


async def test_an_over_long_message_is_refused_alone(served: FakeMesh) -> None:
    stream = served.infer()
    long = infer("long", *["a" * limits.TEXT_BYTES] * 66)
    await stream.send(infer("first", "a"), long, infer("last", "b"))
    answers = {answer.request_id: answer for answer in await stream.end()}
    assert echoed(answers["first"].encode) == ["a"] and echoed(answers["last"].encode) == ["b"]
    error = answers["long"].error
    assert error.code == code_pb2.INVALID_ARGUMENT
    assert f"{limits.MESSAGE_BYTES:,}" in error.message and f"{long.encode.ByteSize():,}" in error.message


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe\x52\x00"])
async def test_garbage_on_a_stream(served: FakeMesh, garbage: bytes) -> None:
    stream = served.infer()
    await stream.send(garbage, infer("good", "a"))
    bad, good = sorted(await stream.end(), key=lambda answer: answer.request_id)
    assert (bad.request_id, bad.error.code) == ("", code_pb2.INVALID_ARGUMENT)
    assert echoed(good.encode) == ["a"]


async def test_a_request_id_in_flight_is_refused_and_free_again_later(mesh: FakeMesh) -> None:
    stream = mesh.infer()
    await stream.send(infer("same", "a"), infer("same", "b"))
    (twice,) = await stream.answers(1)
    assert twice.request_id == "same" and twice.error.code == code_pb2.INVALID_ARGUMENT
    mesh.start_worker()
    (first,) = await stream.answers(1)
    await stream.send(infer("same", "c"))
    (again,) = await stream.answers(1)
    assert [echoed(first.encode), echoed(again.encode)] == [["a"], ["c"]]


async def test_a_request_has_a_deadline_of_its_own(served: FakeMesh) -> None:
    served.worker.behaviour = lambda unit: [whole(unit)] if b"answer" in unit.items[0] else []
    stream = served.infer()
    await stream.send(infer("slow", "silence", deadline_ms=300), infer("quick", "answer"))
    quick, slow = await stream.answers(2)
    assert quick.request_id == "quick" and echoed(quick.encode) == ["answer"]
    assert (slow.request_id, slow.error.code) == ("slow", code_pb2.DEADLINE_EXCEEDED)
    await until(lambda: len(served.cancelled_ids) == 1)


async def test_a_stream_is_not_read_on_while_enough_is_in_flight(served: FakeMesh) -> None:
    held: list[work_pb2.Unit] = []

    def hold(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
        held.append(unit)
        return []

    served.worker.behaviour = hold
    stream = served.infer()
    extra = 8
    await stream.send(*(infer(str(n), f"text {n}") for n in range(limits.INFER_IN_FLIGHT + extra)))
    await until(lambda: len(held) >= limits.INFER_IN_FLIGHT)
    # Another caller's request goes all the way through meanwhile; the stream's surplus doesn't.
    other = served.call(request("other"))
    await until(lambda: any(b"other" in unit.items[0] for unit in held))
    assert len(held) == limits.INFER_IN_FLIGHT + 1
    for unit in held[:extra]:
        await served.worker.send(unit, [whole(unit)])
    await stream.answers(extra)
    await until(lambda: len(held) == limits.INFER_IN_FLIGHT + 1 + extra)
    other.cancel()
    stream.call.cancel()


# A broker that dies.


async def test_a_broker_killed_in_flight_costs_time_only(served: FakeMesh) -> None:
    served.worker.behaviour = silent
    calls = [served.call(request(f"text {n}"), 30.0) for n in range(8)]
    await until(lambda: len(served.worker.units) == 8)
    served.worker.behaviour = lambda unit: [whole(unit)]
    served.broker.restart()
    answers = [echoed(pb.EncodeResponse.FromString(await call)) for call in calls]
    assert answers == [[f"text {n}"] for n in range(8)]


async def test_requests_that_come_while_the_broker_is_away_are_answered_when_it_is_back(served: FakeMesh) -> None:
    served.broker.kill()
    await until(lambda: not served.session.is_up)
    calls = [served.call(request(f"text {n}"), 30.0) for n in range(8)]
    refusal = await served.refused(request("short"), SHORT_S)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "QUEUE_UNAVAILABLE")
    served.broker.start()
    answers = [echoed(pb.EncodeResponse.FromString(await call)) for call in calls]
    assert answers == [[f"text {n}"] for n in range(8)]


# A gateway that is told to stop.


async def test_a_stop_answers_what_was_taken_and_ends_the_streams(served: FakeMesh) -> None:
    held: list[work_pb2.Unit] = []

    def hold(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
        held.append(unit)
        return []

    served.worker.behaviour = hold
    stream, idle = served.infer(None), served.infer(None)
    watch = served.models.WatchModels(models_pb2.WatchModelsRequest())
    await watch.read()
    await idle.send(b"\xff")
    await idle.answers(1)
    await stream.send(infer("1", "a"))
    call = served.call(request("b"))
    await until(lambda: len(held) == 2)
    served.stop_gateway()
    assert await idle.call.code() is grpc.StatusCode.UNAVAILABLE
    assert await watch.code() is grpc.StatusCode.UNAVAILABLE
    for unit in held:
        await served.worker.send(unit, [whole(unit)])
    (answer,) = await stream.answers(1)
    assert echoed(answer.encode) == ["a"]
    assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
    assert echoed(pb.EncodeResponse.FromString(await call)) == ["b"]


@contextlib.asynccontextmanager
async def gateway_process(mesh: FakeMesh, folder: Path, **env: str) -> AsyncIterator[tuple[Process, grpc.aio.Channel]]:
    """A gateway as a process of its own on the mesh's broker, and a channel to it."""
    address = f"unix:{folder}/process.sock"
    environment = {
        "SHOAL_LISTEN": address,
        "SHOAL_NATS_URL": mesh.broker.url,
        "SHOAL_NATS_TOKEN": mesh.broker.token,
        "SHOAL_REGISTRY": f"unix:{folder}/nobody.sock",
    }
    program = (sys.executable, "-m", "shoal_gateway")
    process = await asyncio.create_subprocess_exec(*program, env=os.environ | environment | env)
    try:
        async with grpc_server.channel(address) as channel:
            yield process, channel
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_process_serves_until_it_is_told_to_stop(mesh: FakeMesh, tmp_path: Path) -> None:
    async with gateway_process(mesh, tmp_path) as (process, channel):
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        process.terminate()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_traces_and_counters_reach_a_collector(served: FakeMesh, tmp_path: Path) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with FakeCollector() as collector:
        async with gateway_process(served, tmp_path, **collector.env) as (_, channel):
            encode = channel.unary_unary("/shoal.v1.InferenceService/Encode")
            metadata = (("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"),)
            raw = request("a", "b").SerializeToString()

            async def answered() -> bool:
                try:
                    return bool(await encode(raw, timeout=10, metadata=metadata, wait_for_ready=True))
                except grpc.aio.AioRpcError:
                    return False  # it does not know the models yet

            await until(answered)
            await until(lambda: collector.sums.get(("shoal.gateway.requests", "")) == 1)
            assert collector.sums["shoal.gateway.items", ""] == 2
            await until(lambda: any(span.name == "Encode" for span in collector.spans))
            assert {span.trace_id.hex() for span in collector.spans if span.name == "Encode"} == {trace_id}


async def test_settings_that_are_missing_are_named() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal_gateway", env=dict(os.environ), stderr=asyncio.subprocess.PIPE
    )
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert b"SHOAL_LISTEN" in complaint and b"SHOAL_REGISTRY" in complaint and b"Traceback" not in complaint


# What others see.


async def test_health_and_reflection(mesh: FakeMesh) -> None:
    health = health_pb2_grpc.HealthStub(mesh.channel)
    for service in ("", "shoal.v1.InferenceService", "shoal.v1.ModelService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    info = reflection_pb2_grpc.ServerReflectionStub(mesh.channel).ServerReflectionInfo()
    await info.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="shoal.v1.InferenceService"))
    assert (await info.read()).file_descriptor_response.file_descriptor_proto
    info.cancel()


async def test_models(mesh: FakeMesh) -> None:
    watch = mesh.models.WatchModels(models_pb2.WatchModelsRequest())
    first = await watch.read()
    assert first.snapshot and [model.name for model in first.models] == ["minilm"]
    await mesh.lane_is(scheduler_pb2.RESIDENCY_READY, workers=1)
    change = await watch.read()
    assert not change.snapshot
    assert [(model.name, model.state) for model in change.models] == [("minilm", models_pb2.MODEL_STATE_READY)]
    watch.cancel()

    (listed,) = (await mesh.models.ListModels(models_pb2.ListModelsRequest())).models
    assert listed.state == models_pb2.MODEL_STATE_READY
    assert (listed.dimensions, listed.default_max_tokens, listed.max_tokens, listed.normalize) == (384, 256, 512, True)
    assert list(listed.encode_outputs) == [pb.ENCODE_OUTPUT_DENSE]
    for name, code in (("minilmm", grpc.StatusCode.NOT_FOUND), ("", grpc.StatusCode.INVALID_ARGUMENT)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.models.GetModel(models_pb2.GetModelRequest(model=name))
        assert refused.value.code() is code
