"""The sidecar's binary with simulated devices, driven as a worker drives it: no torch is started."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from shoal.sidecar.v1 import sidecar_pb2
from shoal.v1 import inference_pb2
from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.profile import Profile, parse_profile
from shoal_common.weights import locate
from tests.support import sim
from tests.support.sidecar import Sidecar, Worker, running_sidecar
from tests.support.until import until

TORCH = parse_profile(sim.SIM_PROFILE.read_text().replace("[sim]", "[torch]"))
SIM = parse_profile(sim.SIM_PROFILE.read_text())
MEDIA = SIM.model_copy(update={"name": "media", "encode": SIM.encode.model_copy(update={"inputs": ("text", "media")})})
FOLDER = locate(SIM.source)


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with running_sidecar("--lazy-torch", "--sim", str(sim.SIM_FILE)) as sidecar:
        yield sidecar


@contextlib.asynccontextmanager
async def attached(sidecar: Sidecar, device: str) -> AsyncIterator[Worker]:
    """A worker named for its device that has said Hello."""
    async with sidecar.channel() as channel:
        worker = Worker(channel, f"worker-{device}")
        await worker.hello(device=device)
        yield worker
        await worker.close()


def unit(name: str, profile: Profile, *items: inference_pb2.Item) -> work_pb2.Unit:
    return work_pb2.Unit(
        id=name,
        task=work_pb2.TASK_ENCODE,
        profile_digest=profile.digest(),
        items=[item.SerializeToString() for item in items],
    )


def media(data: bytes) -> inference_pb2.Item:
    return inference_pb2.Item(media=inference_pb2.Media(mime_type="image/png", data=data))


async def run(worker: Worker, sent: work_pb2.Unit) -> list[inference_pb2.EncodeResult]:
    await worker.admit(sent)
    await worker.run(sent.id)
    done = await worker.next("batch_done")
    assert done.runtime == "sim"
    return [inference_pb2.EncodeResult.FromString(result) for result in done.units[0].results]


async def test_media_up_to_the_limit_are_taken_beside_texts(sidecar: Sidecar) -> None:
    largest = random.Random(7).randbytes(limits.MEDIA_BYTES)
    async with attached(sidecar, "sim:0") as worker:
        assert (await worker.load(MEDIA, FOLDER)).state == sidecar_pb2.MODEL_STATE_READY
        (whole,) = await run(worker, unit("largest", MEDIA, media(largest)))
        text = inference_pb2.Item(text="fish")
        small = await run(worker, unit("small", MEDIA, media(b"abc"), text, media(b"")))
        (over,) = await run(worker, unit("over", MEDIA, media(largest + b"x")))
    found = [np.frombuffer(result.dense.data, "<f4") for result in (whole, *small[:2])]
    expected = [sim.encode_media(largest), sim.encode_media(b"abc"), sim.encode(["fish"])[0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (whole.input_tokens, whole.used_tokens, whole.truncated) == (8, 8, False)
    assert (small[2].status.reason, over.status.reason) == ("ITEM_EMPTY", "ITEM_TOO_LARGE")
    assert "at most 33554432" in over.status.message


async def test_one_device_can_be_slower_than_the_others(tmp_path: Path) -> None:
    path = sim.sim_file(tmp_path, cost={"batch_ms": 50}, devices={"sim:1": {"cost": {"batch_ms": 500}}})
    compute_ms = {}
    with running_sidecar("--lazy-torch", "--sim", str(path)) as sidecar:
        for device in ("sim:0", "sim:1"):
            async with attached(sidecar, device) as worker:
                await worker.load(SIM, FOLDER)
                await worker.admit(unit(device, SIM, inference_pb2.Item(text="fish")))
                await worker.run(device)
                compute_ms[device] = (await worker.next("batch_done")).compute_ms
    assert compute_ms["sim:0"] == pytest.approx(50, abs=40)
    assert compute_ms["sim:1"] == pytest.approx(500, abs=40)


async def test_a_model_that_takes_no_media_says_so(sidecar: Sidecar) -> None:
    async with attached(sidecar, "sim:1") as worker:
        await worker.load(SIM, FOLDER)
        (refused,) = await run(worker, unit("refused", SIM, media(b"abc")))
    assert refused.status.reason == "ITEM_MEDIA_UNSUPPORTED"


async def test_a_device_runs_what_names_its_runtime_and_torch_is_started_for_the_first_that_needs_it(
    sidecar: Sidecar,
) -> None:
    process = psutil.Process(sidecar.process.pid)
    async with attached(sidecar, "sim:2") as worker:
        status = await worker.load(TORCH, FOLDER)
        assert status.state == sidecar_pb2.MODEL_STATE_FAILED
        assert status.error == "this device has the sim runtime, but the profile's runtimes are torch"
    assert process.children() == []
    async with attached(sidecar, "cpu") as worker:
        status = await worker.load(SIM, FOLDER)
        assert status.state == sidecar_pb2.MODEL_STATE_FAILED
        assert status.error == "this device has the torch runtime, but the profile's runtimes are sim"
        await until(process.children)


async def test_without_a_sim_file_a_simulated_device_loads_nothing() -> None:
    with running_sidecar("--lazy-torch") as sidecar:
        async with attached(sidecar, "sim:0") as worker:
            status = await worker.load(SIM, FOLDER)
    assert status.state == sidecar_pb2.MODEL_STATE_FAILED
    assert "sim:0 is simulated" in status.error
    assert "--sim FILE" in status.error


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"faults": {"crash": 1}}, "faults.crash: unknown field `crash`, expected one of `crash_probability`"),
        ({"jitter": -0.5}, "jitter: -0.5 is out of range: from 0 to 2 is allowed"),
        ({"devices": {"cpu": {}}}, "devices.cpu: is no simulated device"),
    ],
)
def test_a_sim_file_that_is_wrong_is_refused_with_its_key(tmp_path: Path, changes: dict, said: str) -> None:
    path = sim.sim_file(tmp_path, **changes)
    with running_sidecar("--lazy-torch", "--sim", str(path)) as sidecar:
        assert sidecar.process.wait(10) == 2
        (line,) = sidecar.logged("the sidecar cannot run")
    assert line["error"].startswith(f"the sim file {path}: {said}")
