"""Saved costs on a real broker: a restarted worker begins where it ended, and nothing in the bucket can hurt it."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from shoal_common.bucket import Bucket
from shoal_common.nats_session import Session
from shoal_common.profile import Cost, Tuned
from shoal_worker import cost_store
from shoal_worker.cost_store import CostStore
from shoal_worker.decisions import pace
from shoal_worker.decisions.cost import CostModel
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.settings import WorkerSettings
from tests.support.broker import session_with
from tests.support.nats import NatsServer
from tests.support.until import until
from tests.support.worker_mesh import Mesh

DIGEST = "d" * 64
SEED = Cost(batch_ms=3.0, token_us=95.0)
BATCH = (1, 64, 64**2)


def worker(name: str = "worker-0", **fields: object) -> WorkerSettings:
    values = {"machine": "here", "device": "cpu", "streams": 2, "threads": 2, **fields}
    return WorkerSettings(listen="unix:/tmp/w.sock", sidecar="unix:/tmp/s.sock", worker=name, **values)  # type: ignore


def dispatch(settings: WorkerSettings) -> Dispatch:
    made = Dispatch(settings.streams_or_auto, pace.of_device(settings.device), random.Random(1), 0.0)
    made.serve({DIGEST: Tuned(cost=SEED)}, {})
    return made


def teach(cost: CostModel, factor: float) -> None:
    for tokens in range(5, 205):
        cost.learn(1, tokens, tokens**2, factor * (3.0 + 0.095 * tokens), alone=tokens % 2 == 0)


async def begun(session: Session, settings: WorkerSettings) -> tuple[CostStore, CostModel]:
    """A store that has read, and the cost model of its worker."""
    made = dispatch(settings)
    store = CostStore(session, settings, made)
    await store._read()
    return store, made.costs[DIGEST]


async def test_a_restarted_worker_predicts_as_before(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        store, cost = await begun(session, worker())
        assert cost.batches == 0
        teach(cost, 3.0)
        await store.save()
        _, again = await begun(session, worker())
        assert again.samples() == cost.samples() and again.batches == cost.batches
        _, sibling = await begun(session, worker("worker.1"))
        assert sibling.samples() == cost.samples()
        _, other = await begun(session, worker("worker-0", device="cuda:0", streams=1))
        assert other.batches == 0


async def test_what_was_learnt_before_the_read_stays(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        store, cost = await begun(session, worker())
        cost.learn(*BATCH, 20.0)
        await store.save()
        late = dispatch(worker())
        teach(late.costs[DIGEST], 2.0)
        before = late.costs[DIGEST].state()
        await CostStore(session, worker(), late)._read()
        assert late.costs[DIGEST].state() == before


async def test_a_model_that_is_served_later_is_known_too(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        store, cost = await begun(session, worker())
        teach(cost, 3.0)
        await store.save()
        made = Dispatch(2, pace.of_device("cpu"), random.Random(1), 0.0)
        idle = CostStore(session, worker(), made)
        await idle._read()
        made.serve({DIGEST: Tuned(cost=SEED)}, {})
        assert made.costs[DIGEST].samples() == cost.samples()


async def test_it_is_written_when_it_has_changed(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        store, cost = await begun(session, worker())
        bucket = Bucket(session, cost_store.BUCKET)
        await store.save()
        assert await bucket.last_revision() == 0
        teach(cost, 3.0)
        await store.save()
        await store.save()
        cost.learn(*BATCH, cost.predict_alone(*BATCH) * 1.01)
        await store.save()
        assert await bucket.last_revision() == 1
        teach(cost, 2.0)
        await store.save()
        assert await bucket.last_revision() == 2


async def test_models_of_a_former_life_are_kept(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        store, cost = await begun(session, worker())
        teach(cost, 3.0)
        await store.save()
        other = Dispatch(2, pace.of_device("cpu"), random.Random(1), 0.0)
        other.serve({"e" * 64: Tuned(cost=SEED)}, {})
        second = CostStore(session, worker(), other)
        await second._read()
        teach(other.costs["e" * 64], 2.0)
        await second.save()
        _, again = await begun(session, worker())
        assert again.samples() == cost.samples()


async def test_garbage_and_other_writers_are_outlived(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        bucket = Bucket(session, cost_store.BUCKET, ttl_s=cost_store.KEPT_S)
        await bucket.ensure()
        name = cost_store.key("worker-0")
        await bucket.put(name, b"\xffgarbage", expected=0)
        await bucket.put("someone.else", b"{}", expected=0)
        store, cost = await begun(session, worker())
        assert cost.batches == 0
        teach(cost, 3.0)
        entry = await bucket.get(name)
        assert entry is not None
        await bucket.put(name, b"{}", expected=entry.revision)
        await store.save()  # It was written meanwhile.
        await store.save()
        _, again = await begun(session, worker())
        assert again.samples() == cost.samples()


async def test_without_a_broker_nothing_waits_for_long(nats_server: NatsServer) -> None:
    async with session_with(nats_server) as session:
        store, cost = await begun(session, worker())
        teach(cost, 3.0)
        nats_server.kill()
        await until(lambda: not session.is_up)
        async with asyncio.timeout(cost_store.SAVE_S + 2.0):
            await store.save()
        nats_server.start()
        await until(lambda: session.is_up)
        await store.save()
        _, again = await begun(session, worker())
        assert again.samples() == cost.samples()


async def test_a_worker_that_stops_leaves_its_costs_to_the_next(nats_server: NatsServer) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:  # Unix paths are short.
        async with Mesh(nats_server, Path(folder)).running() as mesh:
            ids = [await mesh.gateway.publish() for _ in range(20)]
            await until(lambda: mesh.gateway.has(*ids))
            digest, batches = mesh.model.digest, len(mesh.sidecar.batches)
        async with Mesh(nats_server, Path(folder)).running() as mesh:
            costs = await until(lambda: mesh.worker._dispatch.costs)
            await until(lambda: costs[digest].batches == batches)
