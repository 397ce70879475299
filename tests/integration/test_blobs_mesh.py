"""Large items through a whole mesh, every answer checked by value; storage that loses, damages or refuses them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.rpc import code_pb2

from shoal.v1 import inference_pb2 as pb
from shoal_common import limits
from shoal_common.blobs import ITEMS, RESULTS, Blobs
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support import sim
from tests.support.raw import RawClient

MODEL = "media"
WORKER = "worker-sim-0"
CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SIZES = (1, limits.BLOB_ITEM_BYTES, limits.MIB, 4 * limits.MIB, 9 * limits.MIB, limits.MEDIA_BYTES)
WAIT_S = 20.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMesh]:
    folder = tmp_path_factory.mktemp("blobs")
    profile = sim.sim_profile(folder, MODEL, encode={"inputs": ["text", "media"]})
    with EmbeddedMesh(
        folder / "state", models=[str(profile)], workers=0, sim=sim.sim_file(folder), sim_workers=1
    ) as running:
        running.wait_for_model(MODEL)
        yield running


@pytest.fixture
def raw(mesh: EmbeddedMesh) -> Iterator[RawClient]:
    with grpc.insecure_channel(mesh.address, options=CHANNEL_OPTIONS) as channel:
        yield RawClient(channel)


@pytest.fixture
def folder(mesh: EmbeddedMesh) -> Path:
    return mesh.folder.blobs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def media(data: bytes, item_id: str = "") -> pb.Item:
    return pb.Item(id=item_id, media=pb.Media(mime_type="image/png", data=data))


def request(*items: pb.Item) -> pb.EncodeRequest:
    return pb.EncodeRequest(model=MODEL, items=items)


def vector(result: pb.EncodeResult) -> np.ndarray:
    assert result.status.code == code_pb2.OK, result.status
    return np.frombuffer(result.dense.data, "<f4")


def is_right(result: pb.EncodeResult, item: pb.Item) -> bool:
    expected = sim.encode_media(item.media.data) if item.HasField("media") else sim.encode([item.text])[0]
    return bool(np.abs(vector(result) - expected).max() < 1e-6)


def until(condition, what: str, timeout_s: float = WAIT_S):
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)
    return value


def files(folder: Path) -> list[Path]:
    """Every file of items and results, those that are half written too."""
    return [path for kind in (ITEMS, RESULTS) for path in (folder / kind).rglob("*") if path.is_file()]


class Stopped:
    """A process that does nothing while the block runs."""

    def __init__(self, mesh: EmbeddedMesh, name: str) -> None:
        self._pid = mesh.pid(name)

    def __enter__(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def __exit__(self, *_) -> None:
        os.kill(self._pid, signal.SIGCONT)


def test_items_of_every_size_are_right_and_leave_nothing_behind(raw: RawClient, folder: Path) -> None:
    items = [media(random.Random(size).randbytes(size), str(size)) for size in SIZES]
    large_text = pb.Item(id="text", text="a shoal of fish " * (limits.TEXT_BYTES // 16))
    for item in (*items, large_text):
        (result,) = raw.encode(request(item)).results
        assert result.id == item.id and is_right(result, item)
    mixed = [items[0], items[2], pb.Item(text="between"), items[3], large_text]
    response = raw.encode(request(*mixed))
    assert all(is_right(result, item) for result, item in zip(response.results, mixed, strict=True))
    until(lambda: not files(folder), "every blob is removed")


def test_a_stream_of_large_items(raw: RawClient, folder: Path) -> None:
    rng = random.Random(7)
    items = {str(n): media(rng.randbytes(rng.choice([1, 3, 10, 20]) * limits.MIB)) for n in range(16)}
    requests = (pb.InferRequest(request_id=name, encode=request(item)) for name, item in items.items())
    answers = list(raw.infer(requests, timeout=60))
    assert {answer.request_id for answer in answers} == set(items)
    for answer in answers:
        assert is_right(answer.encode.results[0], items[answer.request_id]), answer.request_id
    until(lambda: not files(folder), "every blob is removed")


def sent_while_stopped(
    mesh: EmbeddedMesh, raw: RawClient, folder: Path, pool: ThreadPoolExecutor, *items: pb.Item
) -> tuple[Future[pb.EncodeResponse], list[Path]]:
    """A request whose large items are stored and that the worker has not seen; call it while the worker is stopped."""
    answer = pool.submit(raw.encode, request(*items))
    large = sum(item.ByteSize() > limits.BLOB_ITEM_BYTES for item in items)
    stored = until(
        lambda: found if len(found := files(folder)) == large and all(map(is_whole, found)) else None, "it is stored"
    )
    return answer, stored


def is_whole(path: Path) -> bool:
    return "#" not in path.name


@pytest.mark.parametrize(
    ("fate", "reason"), [("removed", "BLOB_MISSING"), ("cut", "BLOB_DAMAGED"), ("flipped", "BLOB_DAMAGED")]
)
def test_an_item_that_storage_lost_costs_itself_alone(
    mesh: EmbeddedMesh, raw: RawClient, folder: Path, pool: ThreadPoolExecutor, fate: str, reason: str
) -> None:
    until(lambda: not files(folder), "every blob is removed")
    items = [pb.Item(text="before"), media(os.urandom(2 * limits.MIB)), pb.Item(text="after")]
    with Stopped(mesh, WORKER):
        answer, (blob,) = sent_while_stopped(mesh, raw, folder, pool, *items)
        data = blob.read_bytes()
        if fate == "removed":
            blob.unlink()
        else:
            blob.write_bytes(data[:-1] if fate == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    first, lost, last = answer.result(limits.BLOB_WAIT_S + WAIT_S).results
    assert is_right(first, items[0]) and is_right(last, items[2])
    assert (lost.status.code, lost.status.reason) == (code_pb2.DATA_LOSS, reason)


def test_storage_that_refuses_costs_large_items_alone(raw: RawClient, folder: Path) -> None:
    until(lambda: not files(folder), "every blob is removed")
    kept = folder / "items"
    kept.rename(folder / "aside")
    kept.write_text("a file where a folder should be")
    try:
        items = [pb.Item(text="small"), media(os.urandom(limits.MIB), "large")]
        small, large = raw.encode(request(*items)).results
        assert is_right(small, items[0])
        assert (large.id, large.status.code) == ("large", code_pb2.UNAVAILABLE)
        assert large.status.reason == "BLOB_STORAGE_FAILED"
    finally:
        kept.unlink()
        (folder / "aside").rename(kept)
    (result,) = raw.encode(request(items[1])).results
    assert is_right(result, items[1])


def test_a_gateway_killed_with_items_half_written(mesh: EmbeddedMesh, folder: Path) -> None:
    """Whatever it had published and not stored, the lane goes on, and what it left is swept."""
    stop = threading.Event()

    def flood() -> None:
        with grpc.insecure_channel(mesh.address, options=CHANNEL_OPTIONS) as channel:
            client = RawClient(channel)
            item = media(os.urandom(20 * limits.MIB))
            while not stop.is_set():
                try:
                    client.encode(request(item), timeout=5)
                except grpc.RpcError:
                    stop.wait(0.05)

    flooding = [threading.Thread(target=flood, daemon=True) for _ in range(3)]
    for thread in flooding:
        thread.start()
    for _ in range(3):
        gateway = mesh.pid("gateway")
        until(lambda: any(not is_whole(path) for path in files(folder)), "an item is half written")
        os.kill(gateway, signal.SIGKILL)
        until(lambda before=gateway: mesh.pid("gateway") != before, "the gateway is back")
    stop.set()
    for thread in flooding:
        thread.join(30)
    mesh.wait_whole()
    with grpc.insecure_channel(mesh.address, options=CHANNEL_OPTIONS) as channel:
        item = media(os.urandom(3 * limits.MIB))
        (result,) = RawClient(channel).encode(request(item), timeout=60).results
        assert is_right(result, item)
    asyncio.run(Blobs(str(folder)).sweep(time.time() + 2 * 3600, 10_000))
    assert not files(folder)
