"""The sidecar's binary with a real torch runtime, driven as a worker drives it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc
from shoal.v1 import inference_pb2
from shoal.work.v1 import work_pb2
from shoal_common.profile import parse_profile
from tests.support import reference, texts
from tests.support.sidecar import HEARD_S, Sidecar, Worker, running_sidecar
from tests.support.until import until

CATALOGUE = Path(__file__).parents[2] / "services/registry/shoal_registry/catalogue"
MINILM = parse_profile((CATALOGUE / "minilm.yaml").read_text())
SERVICE = "shoal.sidecar.v1.SidecarService"
POISON = "poisonous fish"
POISON_TOKENS = "101,22641,3869,102"
DEADLY = MINILM.model_copy(update={"name": "deadly"})
"""Loading it kills the runtime."""


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    faults = {"SHOAL_FAULT_POISON": POISON_TOKENS, "SHOAL_FAULT_LOAD": DEADLY.name}
    with running_sidecar(faults=faults) as sidecar:
        yield sidecar


@contextlib.asynccontextmanager
async def attached(sidecar: Sidecar, name: str, streams: int = 1) -> AsyncIterator[Worker]:
    """A worker that has said Hello and has minilm."""
    async with sidecar.channel() as channel:
        worker = Worker(channel, name)
        await worker.hello(streams)
        assert (await worker.load(MINILM)).state == sidecar_pb2.MODEL_STATE_READY
        yield worker
        await worker.close()


def unit(name: str, items: Sequence[str | bytes], options: inference_pb2.EncodeOptions | None = None) -> work_pb2.Unit:
    """A unit of texts, or of bytes that stand for items."""
    return work_pb2.Unit(
        id=name,
        task=work_pb2.TASK_ENCODE,
        profile_digest=MINILM.digest(),
        options=(options or inference_pb2.EncodeOptions()).SerializeToString(),
        items=[
            item if isinstance(item, bytes) else inference_pb2.Item(id=f"i{n}", text=item).SerializeToString()
            for n, item in enumerate(items)
        ],
    )


def results(outcome: sidecar_pb2.UnitOutcome) -> list[inference_pb2.EncodeResult]:
    return [inference_pb2.EncodeResult.FromString(result) for result in outcome.results]


def vectors(outcome: sidecar_pb2.UnitOutcome) -> np.ndarray:
    parsed = results(outcome)
    assert all(not result.HasField("status") for result in parsed), parsed
    return np.stack([np.frombuffer(result.dense.data, "<f4") for result in parsed])


def assert_like_reference(outcome: sidecar_pb2.UnitOutcome, sent: list[str]) -> None:
    assert (reference.cosines(vectors(outcome), reference.encode(sent)) >= 0.99999).all()


def runtimes(sidecar: Sidecar) -> list[psutil.Process]:
    return [p for p in sidecar.warm_parent().children() if p.status() != psutil.STATUS_ZOMBIE]


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_values_are_those_of_transformers_whatever_the_batch(sidecar: Sidecar) -> None:
    sent = texts.mixed(seed=7, count=24, most_tokens=400)
    async with attached(sidecar, "values") as worker:
        admitted = await worker.admit(unit("a", sent[:16]), unit("b", sent[16:]))
        counts = {"a": sent[:16], "b": sent[16:]}
        for answer in admitted:
            used = [min(reference.token_count(text), 256) for text in counts[answer.unit_id]]
            assert (answer.owner, answer.items, answer.tokens) == ("values", len(used), sum(used))
            assert answer.squared_tokens == sum(n * n for n in used)
        await worker.run("a", "b", trace=True)
        done = await worker.next("batch_done")
    assert (done.batch_id, done.runtime) == (1, "torch")
    assert done.compute_ms > 0 and done.started_unix_ns > 0
    assert [outcome.unit_id for outcome in done.units] == ["a", "b"]
    for outcome in done.units:
        assert outcome.attempt == 1
        assert_like_reference(outcome, counts[outcome.unit_id])
        for text, result in zip(counts[outcome.unit_id], results(outcome), strict=True):
            assert result.input_tokens == reference.token_count(text)
            assert result.used_tokens == min(result.input_tokens, 256)
            assert result.truncated == (result.input_tokens > 256)
        assert outcome.tokenize.name == "tokenize"
    assert [span.name for span in done.spans] == ["assemble", "runtime", "forward", "post"]
    assert all(span.start_unix_ns <= span.end_unix_ns for span in done.spans)


async def test_options_shape_the_result(sidecar: Sidecar) -> None:
    text = "a school of fish"
    raw = reference.encode([text], normalize=False)[0]
    cut = raw[:100] / np.linalg.norm(raw[:100])
    units = {
        "raw": inference_pb2.EncodeOptions(normalize=False),
        "cut": inference_pb2.EncodeOptions(dimensions=100),
        "int8": inference_pb2.EncodeOptions(dimensions=100, type=inference_pb2.ELEMENT_TYPE_INT8),
        "f16": inference_pb2.EncodeOptions(dimensions=100, type=inference_pb2.ELEMENT_TYPE_F16),
        "bits": inference_pb2.EncodeOptions(dimensions=100, type=inference_pb2.ELEMENT_TYPE_BINARY),
        "short": inference_pb2.EncodeOptions(max_tokens=4),
    }
    async with attached(sidecar, "options") as worker:
        await worker.admit(*(unit(name, [text], options) for name, options in units.items()))
        await worker.run(*units)
        done = await worker.next("batch_done")
    tensor = {outcome.unit_id: results(outcome)[0].dense for outcome in done.units}
    data = {name: value.data for name, value in tensor.items()}
    np.testing.assert_allclose(np.frombuffer(data["raw"], "<f4"), raw, atol=1e-5)
    np.testing.assert_allclose(np.frombuffer(data["cut"], "<f4"), cut, atol=1e-6)
    np.testing.assert_allclose(np.frombuffer(data["int8"], "i1"), np.rint(127 * cut), atol=1)
    np.testing.assert_allclose(np.frombuffer(data["f16"], "<f2"), cut, atol=1e-3)
    assert (np.unpackbits(np.frombuffer(data["bits"], "u1"))[:100] == (cut > 0)).mean() > 0.98
    assert list(tensor["bits"].shape) == [100] and len(data["bits"]) == 13
    (short,) = (results(outcome)[0] for outcome in done.units if outcome.unit_id == "short")
    assert (short.input_tokens, short.used_tokens, short.truncated) == (6, 4, True)
    found = np.frombuffer(short.dense.data, "<f4")[None]
    assert (reference.cosines(found, reference.encode([text], max_tokens=4)) >= 0.99999).all()


async def test_bad_items_fail_alone(sidecar: Sidecar) -> None:
    items: list[str | bytes] = [
        "fish",
        "",
        " \n\0",
        b"\x0a\x02id\x12\x02\xff\xfe",
        b"\xff\xff",
        inference_pb2.Item(media=inference_pb2.Media(mime_type="image/png")).SerializeToString(),
        b"",
        inference_pb2.Item(id="x" * 257, text="fish").SerializeToString(),
        "fish " * 250_000,
        "more fish",
    ]
    reasons = [
        "",
        "ITEM_EMPTY",
        "ITEM_EMPTY",
        "ITEM_MALFORMED",
        "ITEM_MALFORMED",
        "ITEM_MEDIA_UNSUPPORTED",
        "ITEM_EMPTY",
        "ITEM_ID_TOO_LONG",
        "ITEM_TOO_LARGE",
        "",
    ]
    too_long = inference_pb2.EncodeOptions(truncation=inference_pb2.TRUNCATION_ERROR, max_tokens=4)
    async with attached(sidecar, "bad-items") as worker:
        admitted = await worker.admit(
            unit("mixed", items), unit("bad", [""]), unit("long", ["one two three"], too_long)
        )
        assert {answer.unit_id: answer.items for answer in admitted} == {"mixed": 2, "bad": 0, "long": 0}
        await worker.run("mixed", "long")
        done = await worker.next("batch_done")
        mixed, long = (results(outcome) for outcome in done.units)
        await worker.run("bad", batch_id=2)
        without_runtime = await worker.next("batch_done")
    assert [result.status.reason for result in mixed] == reasons
    assert all(r.status.code in (code_pb2.OK, code_pb2.INVALID_ARGUMENT) for r in mixed)
    assert mixed[3].id == "id"
    good = np.stack([np.frombuffer(mixed[n].dense.data, "<f4") for n in (0, 9)])
    assert (reference.cosines(good, reference.encode(["fish", "more fish"])) >= 0.99999).all()
    assert long[0].status.reason == "ITEM_TOO_LONG"
    assert "5 tokens" in long[0].status.message and "at most 4" in long[0].status.message
    assert results(without_runtime.units[0])[0].status.reason == "ITEM_EMPTY"


async def test_a_long_text_is_tokenized_as_far_as_it_matters(sidecar: Sidecar) -> None:
    text = texts.text(random.Random(1), 180_000)[: 1 << 20]
    async with attached(sidecar, "long") as worker:
        (admitted,) = await worker.admit(unit("long", [text]))
        await worker.run("long")
        done = await worker.next("batch_done")
    assert admitted.tokens == 256
    (result,) = results(done.units[0])
    assert result.truncated and result.input_tokens_lower_bound and result.input_tokens > 256
    assert_like_reference(done.units[0], [text[:10_000]])


async def test_units_that_cannot_be_taken_are_refused_with_a_status(sidecar: Sidecar) -> None:
    unknown = unit("unknown", ["fish"])
    unknown.profile_digest = "0" * 64
    bad = unit("bad", ["fish"], inference_pb2.EncodeOptions(dimensions=385))
    async with attached(sidecar, "refusals") as worker:
        answers = {answer.unit_id: answer.error for answer in await worker.admit(unknown, bad)}
        garbage = [sidecar_pb2.AdmitUnit(unit=b"\xff"), sidecar_pb2.AdmitUnit(unit=b"\x0a\x02id\x12\x01\xff")]
        await worker.send(admit=sidecar_pb2.Admit(units=garbage))
        for _ in garbage:
            answer = await worker.next("unit")
            answers[answer.unit_id] = answer.error
    found = {}
    for name, error in answers.items():
        status, info = status_pb2.Status.FromString(error), error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        found[name] = (status.code, info.reason)
    assert found == {
        "unknown": (code_pb2.UNAVAILABLE, "MODEL_UNAVAILABLE"),
        "bad": (code_pb2.INVALID_ARGUMENT, "OPTION_INVALID"),
        "": (code_pb2.INVALID_ARGUMENT, "UNIT_MALFORMED"),
        "id": (code_pb2.INVALID_ARGUMENT, "UNIT_MALFORMED"),
    }


async def test_a_unit_has_one_owner(sidecar: Sidecar) -> None:
    async with attached(sidecar, "owner") as owner, attached(sidecar, "sibling") as sibling:
        await owner.admit(unit("u", ["fish"]))
        (again,) = await sibling.admit(unit("u", ["fish"]), deliveries=2)
        assert (again.owner, again.tokens) == ("owner", 3)
        await sibling.run("u", "never seen")
        refused = await sibling.next("batch_refused")
        assert list(refused.not_owned) == ["u", "never seen"] and not refused.model_not_ready
        await owner.run("u")
        done = await owner.next("batch_done")
        assert done.units[0].attempt == 2
        await owner.admit(unit("v", ["fish"]))
        await owner.send(release=sidecar_pb2.Release(unit_ids=["v"]))
        await owner.run("u", "v", batch_id=2)
        assert list((await owner.next("batch_refused")).not_owned) == ["u", "v"]


async def test_messages_that_come_in_one_write_are_obeyed_in_order(sidecar: Sidecar) -> None:
    async with attached(sidecar, "bundle") as worker:
        sent = unit("bundled", ["fish"])
        admit = sidecar_pb2.Admit(units=[sidecar_pb2.AdmitUnit(unit=sent.SerializeToString(), deliveries=1)])
        runs = [sidecar_pb2.RunBatch(batch_id=batch_id, unit_ids=[sent.id]) for batch_id in (7, 8)]
        await worker.send(admit=admit, more=[sidecar_pb2.AttachRequest(run_batch=run) for run in runs])
        assert (await worker.next("batch_refused")).batch_id == 8, "it runs already"
        done = await worker.next("batch_done")
        assert done.batch_id == 7
        assert_like_reference(done.units[0], ["fish"])


async def test_a_restarted_worker_finds_its_units_and_its_runtime(sidecar: Sidecar) -> None:
    async with attached(sidecar, "restart") as before:
        await before.admit(unit("kept", ["fish"]))
        forks = len(sidecar.logged("forked"))
        async with sidecar.channel() as channel:
            after = Worker(channel, "restart")  # the old stream is still there: it is replaced
            await after.hello()
            granted = await after.next("granted")
            (kept,) = granted.units
            assert (granted.number, work_pb2.Unit.FromString(kept.header).id) == (1, "kept")
            assert (kept.ack_subject, kept.tokens, getattr(kept, "from")) == ("ack.kept", 3, "restart")
            assert (await after.load(MINILM)).state == sidecar_pb2.MODEL_STATE_READY
            await after.run("kept")
            assert_like_reference((await after.next("batch_done")).units[0], ["fish"])
            await after.close()
    assert len(sidecar.logged("forked")) == forks


async def test_a_killed_runtime_costs_time_and_no_answer(sidecar: Sidecar) -> None:
    sent = [texts.text(random.Random(n), 250) for n in range(24)]
    async with attached(sidecar, "killed") as worker:
        await worker.admit(unit("a", sent), unit("b", ["fish"]))
        pid = sidecar.logged("forked")[-1]["pid"]
        runtime = psutil.Process(pid)
        cpu_s = runtime.cpu_times().user
        await worker.run("a", batch_id=1)
        await worker.run("b", batch_id=2)
        await until(lambda: runtime.cpu_times().user > cpu_s + 0.05)
        runtime.send_signal(signal.SIGKILL)
        done = {(one := await worker.next("batch_done")).batch_id: one for _ in range(2)}
        states = [status.state for status in worker.states]
    assert_like_reference(done[1].units[0], sent)
    assert_like_reference(done[2].units[0], ["fish"])
    assert done[1].units[0].attempt == 2
    loading, ready = sidecar_pb2.MODEL_STATE_LOADING, sidecar_pb2.MODEL_STATE_READY
    assert ready in states and states[states.index(ready) :].count(loading) >= 1 and states[-1] == ready


async def test_poison_fails_alone(sidecar: Sidecar) -> None:
    good = ["fish", "more fish", "a school of fish"]
    async with attached(sidecar, "poison") as worker:
        await worker.admit(unit("a", [good[0], POISON, good[1]]), unit("b", [good[2]]))
        await worker.run("a", "b")
        done = await worker.next("batch_done")
        await worker.load(MINILM)
        await worker.admit(unit("after", ["fish"]))
        await worker.run("after", batch_id=2)
        after = await worker.next("batch_done")
    a, b = done.units
    first, poison, second = results(a)
    assert (poison.status.code, poison.status.reason) == (code_pb2.INTERNAL, "RUNTIME_CRASHED")
    found = np.stack([np.frombuffer(r.dense.data, "<f4") for r in (first, second, results(b)[0])])
    assert (reference.cosines(found, reference.encode(good)) >= 0.99999).all()
    assert (a.attempt, b.attempt) == (2, 2)
    assert after.units[0].attempt == 1


async def test_a_killed_warm_parent_is_replaced(sidecar: Sidecar) -> None:
    async with attached(sidecar, "orphaned") as worker:
        parent = sidecar.warm_parent()
        parent.kill()
        await until(lambda: worker.states[-1].state == sidecar_pb2.MODEL_STATE_LOADING, 10)
        await until(lambda: worker.states[-1].state == sidecar_pb2.MODEL_STATE_READY, HEARD_S)
        await worker.admit(unit("u", ["fish"]))
        await worker.run("u")
        assert_like_reference((await worker.next("batch_done")).units[0], ["fish"])
        assert sidecar.warm_parent().pid != parent.pid


async def test_a_worker_that_stays_away_loses_its_runtime(sidecar: Sidecar) -> None:
    async with attached(sidecar, "leaves") as worker:
        await worker.admit(unit("lapsed", ["fish"]))
        runtime = psutil.Process(sidecar.logged("forked")[-1]["pid"])
    await until(lambda: is_gone(runtime), 15)
    async with sidecar.channel() as channel:
        worker = Worker(channel, "leaves")
        await worker.hello()
        await worker.run("lapsed")
        assert list((await worker.next("batch_refused")).not_owned) == ["lapsed"]
        assert not worker.has_heard("granted")
        await worker.close()


async def test_a_model_that_cannot_be_loaded_says_why(sidecar: Sidecar, tmp_path: Path) -> None:
    wrong = MINILM.model_copy(update={"encode": MINILM.encode.model_copy(update={"special_tokens": 1})})
    (tmp_path / "tokenizer.json").write_bytes((reference.minilm_folder() / "tokenizer.json").read_bytes())
    async with sidecar.channel() as channel:
        worker = Worker(channel, "failures")
        await worker.hello()
        missing = await worker.load(MINILM, folder=tmp_path / "nowhere")
        counted = await worker.load(wrong)
        without_weights = await worker.load(MINILM, folder=tmp_path)
        await worker.close()
    for status, what in (
        (missing, "tokenizer.json"),
        (counted, "special_tokens is 1"),
        (without_weights, str(tmp_path)),
    ):
        assert status.state == sidecar_pb2.MODEL_STATE_FAILED
        assert what in status.error


async def test_a_model_that_kills_its_runtime_fails_alone_and_is_not_tried_again(sidecar: Sidecar) -> None:
    async with attached(sidecar, "deadly") as worker:
        forks = len(sidecar.logged("forked"))
        first = await worker.load(DEADLY)
        await until(lambda: worker.states[-1].state == sidecar_pb2.MODEL_STATE_READY)
        assert len(sidecar.logged("forked")) == forks + 2
        again = await worker.load(DEADLY)
        await worker.admit(unit("u", ["fish"]))
        await worker.run("u")
        done = await worker.next("batch_done")
        assert len(sidecar.logged("forked")) == forks + 2
    for status in (first, again):
        assert status.state == sidecar_pb2.MODEL_STATE_FAILED
        assert status.profile_digest == DEADLY.digest()
        assert status.error == "the runtime ended while it loaded this model, 2 times"
    assert done.units[0].attempt == 1
    assert_like_reference(done.units[0], ["fish"])


async def test_health_is_watched_and_sigterm_ends_all() -> None:
    with running_sidecar() as sidecar:
        async with sidecar.channel() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), wait_for_ready=True)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            checked = await health.Check(health_pb2.HealthCheckRequest())
            assert checked.status == health_pb2.HealthCheckResponse.SERVING
            parent = sidecar.warm_parent()
            stopped = asyncio.create_task(asyncio.to_thread(sidecar.stop))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await stopped == 0
        assert is_gone(parent)
        assert not sidecar.socket.exists()


async def test_the_sidecar_ends_with_its_parent_and_replaces_a_stale_socket() -> None:
    with running_sidecar("--exit-with-parent") as sidecar:
        await until(sidecar.socket.exists)
        parent = sidecar.warm_parent()
        assert sidecar.process.stdin is not None
        sidecar.process.stdin.close()
        assert await asyncio.to_thread(sidecar.process.wait, 10) == 0
        assert is_gone(parent)

        folder = sidecar.socket.parent
        first = Sidecar(folder)
        await until(sidecar.socket.exists)
        first.process.kill()
        first.process.wait()
        assert sidecar.socket.exists()
        second, third = Sidecar(folder), None
        try:
            async with second.channel() as channel:
                health = health_pb2_grpc.HealthStub(channel)
                await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=10)
            third = Sidecar(folder)
            assert await asyncio.to_thread(third.process.wait, 10) == 1
        finally:
            assert second.stop() == 0


async def test_without_a_python_models_stay_loading_and_say_so() -> None:
    with running_sidecar(python="/nowhere/python") as sidecar:
        async with sidecar.channel() as channel:
            worker = Worker(channel, "w")
            await worker.hello()
            load = sidecar_pb2.LoadModel(
                profile_digest=MINILM.digest(),
                profile_json=MINILM.canonical_json(),
                folder=str(reference.minilm_folder()),
            )
            await worker.send(load_model=load)
            await until(lambda: any("/nowhere/python" in status.progress for status in worker.states))
            assert {status.state for status in worker.states} == {sidecar_pb2.MODEL_STATE_LOADING}
            await worker.close()


async def test_a_stream_that_does_not_begin_with_hello_is_refused(sidecar: Sidecar) -> None:
    async with sidecar.channel() as channel:
        call = sidecar_pb2_grpc.SidecarServiceStub(channel).Attach(wait_for_ready=True)
        await call.write(sidecar_pb2.AttachRequest(release=sidecar_pb2.Release()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
