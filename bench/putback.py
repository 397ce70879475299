"""`grant_ms`: a unit offered by one worker is another's, median from offer to grant, over a real sidecar.

Beside it: the same unit goes back through the queue, with a millisecond more each way to the broker, as over a
network. And what put-backs buy: p99 and busy share of four devices with uneven texts, all on one machine, where
siblings settle what they over-pulled, and each on a machine of its own, where they cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from bench import open_load, report
from bench.cluster import running_cluster
from shoal.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc
from shoal.v1 import inference_pb2
from shoal.work.v1 import work_pb2
from shoal_common import grpc_server, lanes, queue_setup, weights
from shoal_common.nats_session import connected_session
from shoal_common.process import Stop
from shoal_common.profile import Profile, parse_profile
from shoal_supervisor.sidecar_build import sidecar_binary
from tests.support import sim
from tests.support.broker_proxy import BrokerProxy
from tests.support.nats import NatsServer

BAR_MS = 0.4
UNITS = 500
PAUSE_S = 0.002
"""Between two units: each is measured alone."""
LINK_S = 0.001
ROUNDS = 3
WAIT_S = 20.0
SECONDS = 30.0
LOADS = (0.5, 0.7, 0.8)
SLOWED = 30
CURVE = {"batch_ms": 4.0 * SLOWED, "token_us": 2.0 * SLOWED}
UNEVEN_SIGMA = 1.2
"""Of the texts' lengths: a few are twenty times the median."""


class Stream:
    """A worker's stream to the sidecar, as far as this figure needs it."""

    def __init__(self, stub: sidecar_pb2_grpc.SidecarServiceStub, worker: str, device: str) -> None:
        self.worker = worker
        self._hello = sidecar_pb2.Hello(worker=worker, device=device, streams=1, threads=1)
        self._call = stub.Attach(wait_for_ready=True)
        self._heard: dict[str, asyncio.Queue] = {}
        self._reading: asyncio.Task | None = None

    async def open(self, profile: Profile) -> None:
        """Introduces itself and has the model loaded."""
        await self.send(hello=self._hello)
        self._reading = asyncio.create_task(self._read())
        folder = str(weights.locate(profile.source))
        load = sidecar_pb2.LoadModel(
            profile_digest=profile.digest(), profile_json=profile.canonical_json(), folder=folder
        )
        await self.send(load_model=load)
        while (await self.heard("model_status")).state != sidecar_pb2.MODEL_STATE_READY:
            pass

    async def send(self, **message) -> None:
        await self._call.write(sidecar_pb2.AttachRequest(**message))

    async def heard(self, kind: str) -> Any:
        """The next message of a kind."""
        async with asyncio.timeout(WAIT_S):
            return await self._queue(kind).get()

    async def _read(self) -> None:
        while isinstance(response := await self._call.read(), sidecar_pb2.AttachResponse):
            kind = response.WhichOneof("message") or ""
            self._queue(kind).put_nowait(getattr(response, kind))

    def _queue(self, kind: str) -> asyncio.Queue:
        return self._heard.setdefault(kind, asyncio.Queue())


class Pair:
    """Two workers on one sidecar, and units that go from one to the other."""

    def __init__(self, owner: Stream, sibling: Stream, profile: Profile) -> None:
        self.owner, self.sibling, self.profile = owner, sibling, profile
        self._grants = 0

    def unit(self, name: str) -> work_pb2.Unit:
        item = inference_pb2.Item(text="a text of a usual length that some caller wants a vector of " * 2)
        return work_pb2.Unit(
            id=name,
            reply_subject="shoal.result.nobody",
            remaining_ms=60_000,
            work_class=work_pb2.WORK_CLASS_INTERACTIVE,
            task=work_pb2.TASK_ENCODE,
            profile_digest=self.profile.digest(),
            estimated_tokens=30,
            items=[item.SerializeToString()],
        )

    async def admit(self, stream: Stream, unit: bytes, ack_subject: str) -> sidecar_pb2.AdmittedUnit:
        """Has a unit taken in and tokenized."""
        admitted = sidecar_pb2.AdmitUnit(unit=unit, ack_subject=ack_subject, deliveries=1)
        await stream.send(admit=sidecar_pb2.Admit(units=[admitted]))
        return (await stream.heard("admitted")).units[0]

    async def post(self, stream: Stream, free_in_ms: float, room_ms: float) -> None:
        """Posts a state."""
        resident = sidecar_pb2.Resident(profile_digest=self.profile.digest())
        state = sidecar_pb2.State(
            free_in_ms=free_in_ms, room_ms=room_ms, residents=[resident], grants_seen=self._grants
        )
        await stream.send(state=state)

    async def put_back(self, number: int) -> float:
        """Milliseconds from the offer of a unit to its grant, tokenized and ready to run."""
        unit = self.unit(f"put-back-{number}")
        counted = await self.admit(self.owner, unit.SerializeToString(), f"$JS.ACK.s.c.1.{number}.1.1.0")
        await self.post(self.owner, 1_000.0, 0.0)
        await self.post(self.sibling, 0.0, 1_000.0)
        await asyncio.sleep(PAUSE_S)
        started = time.perf_counter()
        offered = sidecar_pb2.OfferedUnit(unit_id=unit.id, cost_ms=1.0, starts_in_ms=500.0)
        await self.owner.send(offer=sidecar_pb2.Offer(units=[offered]))
        granted = await self.sibling.heard("granted")
        took_ms = (time.perf_counter() - started) * 1e3
        self._grants = granted.number
        got = granted.units[0]
        assert (got.tokens, got.items, got.deliveries) == (counted.tokens, 1, 1), "tokenized once, delivered once"
        assert list((await self.owner.heard("taken")).unit_ids) == [unit.id]
        batch = sidecar_pb2.RunBatch(batch_id=number + 1, unit_ids=[unit.id])
        await self.sibling.send(run_batch=batch)
        assert (await self.sibling.heard("batch_done")).units[0].unit_id == unit.id
        return took_ms


async def _grants(sidecar: Path, profile: Profile) -> list[float]:
    async with _pair(sidecar, profile) as pair:
        return [await pair.put_back(number) for number in range(UNITS)]


async def _through_queue(sidecar: Path, profile: Profile, proxy: BrokerProxy) -> list[float]:
    """Milliseconds from republishing a unit to its being tokenized for the worker that pulled it."""
    token = "putback0putback0"
    subject = lanes.work_subject(token, "interactive")
    consumer = f"{lanes.stream_name(lanes.shard_of(token))}.{lanes.consumer_name(token, 'interactive')}"
    times: list[float] = []
    run = secrets.token_hex(4)  # The broker drops an id that it has seen lately.
    async with _pair(sidecar, profile) as pair, connected_session(_Access(proxy), "putback", Stop()) as session:
        await queue_setup.ensure_streams(session)
        await queue_setup.ensure_consumers(session, token)
        pulled: asyncio.Queue = asyncio.Queue()
        await session.subscribe("bench.putback", pulled.put)
        for number in range(UNITS):
            unit = pair.unit(f"{run}-{number}")
            # An idle worker's pull waits at the broker already.
            await session.send(
                f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", b'{"batch":1,"expires":5000000000}', reply="bench.putback"
            )
            await asyncio.sleep(PAUSE_S + 2 * LINK_S)
            started = time.perf_counter()
            publish = asyncio.create_task(
                session.publish(subject, unit.SerializeToString(), msg_id=unit.id, timeout_s=WAIT_S)
            )
            message = await asyncio.wait_for(pulled.get(), WAIT_S)
            assert not message.headers or "Status" not in message.headers, message.headers
            admitted = await pair.admit(pair.sibling, message.data, message.reply)
            times.append((time.perf_counter() - started) * 1e3)
            assert admitted.unit_id == unit.id
            await publish
            await session.send(message.reply, b"+ACK")
            await pair.sibling.send(release=sidecar_pb2.Release(unit_ids=[unit.id]))
    return times


class _Access:
    """A broker's address and token, as a session needs them."""

    def __init__(self, proxy: BrokerProxy) -> None:
        self.nats_url, self.nats_token = proxy.url, proxy.token


@contextlib.asynccontextmanager
async def _pair(sidecar: Path, profile: Profile) -> AsyncIterator[Pair]:
    async with grpc_server.channel(f"unix:{sidecar}") as channel:
        stub = sidecar_pb2_grpc.SidecarServiceStub(channel)
        owner, sibling = Stream(stub, "w0", "sim:0"), Stream(stub, "w1", "sim:1")
        await owner.open(profile)
        await sibling.open(profile)
        yield Pair(owner, sibling, profile)


@contextlib.contextmanager
def _running_sidecar(folder: Path):
    socket = folder / "s.sock"
    command = [str(sidecar_binary(report.say)), "--socket", str(socket), "--runtime-dir", str(folder / "r")]
    command += ["--python", sys.executable, "--sim", str(sim.sim_file(folder))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield socket
    finally:
        process.terminate()
        process.wait(10)


def _costs(folder: Path) -> dict[str, Any]:
    profile = parse_profile(sim.SIM_PROFILE.read_text())
    broker = NatsServer(folder / "nats")
    broker.start()
    proxy = BrokerProxy(broker.port, broker.token, LINK_S)
    proxy.start()
    grants: list[float] = []
    queues: list[float] = []
    try:
        for _ in range(ROUNDS):
            with _running_sidecar(folder) as socket:
                grants += uvloop.run(_grants(socket, profile))
                queues += uvloop.run(_through_queue(socket, profile, proxy))
    finally:
        proxy.stop()
        broker.stop()
    return {"grant": _summary(grants), "through_queue": _summary(queues)}


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50_ms": statistics.median(ordered),
        "p90_ms": ordered[int(len(ordered) * 0.9)],
        "p99_ms": ordered[int(len(ordered) * 0.99)],
    }


def _gains(seconds: float, seed: int) -> dict[str, Any]:
    """p99 and busy share by load, with put-backs on and off."""
    found: dict[str, Any] = {}
    for machines, name in (([4], "on"), ([1] * 4, "off")):
        with tempfile.TemporaryDirectory(prefix="shoal-putback-") as path:
            folder = Path(path)
            sim_file = sim.sim_file(folder, seed=seed, cost=CURVE, jitter=0.2)
            tuned = {"sim": {"cost": CURVE, "interactive_ms": 20.0 * SLOWED}}
            with running_cluster(sim_file, folder) as cluster:
                cluster.register(sim.sim_profile(folder, "m0", pool="bench", tuned=tuned))
                for number, workers in enumerate(machines):
                    cluster.machine(f"m{number}", sim_file, ["bench"] * workers)
                cluster.wait_ready(cluster.mesh.address, ["m0"], 4)
                found[name] = {str(load): _loaded(cluster.mesh.address, load, seconds, seed) for load in LOADS}
        report.say(f"put-backs {name}: {json.dumps(found[name])}")
    return found


def _loaded(address: str, load: float, seconds: float, seed: int) -> dict[str, float]:
    limit = 4 * 1e6 / (CURVE["token_us"] * open_load.mean_tokens(sigma=UNEVEN_SIGMA))
    plan = open_load.Plan(address, ["m0"], load * limit, seconds, seed, warm_up_s=6.0, sigma=UNEVEN_SIGMA)
    measured = open_load.run(plan)
    busy = sum(measured["busy_by_worker"].values()) / 4
    return {"p50_ms": measured["p50_ms"], "p99_ms": measured["p99_ms"], "busy_share": busy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-pb-") as folder:
        costs = _costs(Path(folder))
    report.say(f"grant {costs['grant']}, through the queue {costs['through_queue']}")
    gains = _gains(options.seconds, options.seed)
    report.result("grant_ms", costs["grant"]["p50_ms"], f"<= {BAR_MS}", **costs, put_backs=gains, seed=options.seed)


if __name__ == "__main__":
    main()
