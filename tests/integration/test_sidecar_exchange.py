"""Units that change hands between workers of one machine, through the sidecar's binary with simulated devices."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.sidecar.v1 import sidecar_pb2
from shoal.v1 import inference_pb2
from shoal.work.v1 import work_pb2
from shoal_common.profile import parse_profile
from tests.support import sim
from tests.support.sidecar import Sidecar, Worker, running_sidecar

SIM = parse_profile(sim.SIM_PROFILE.read_text())
BATCH_MS = 60.0
"""Long enough to be still running when the next message is read."""
SILENCE_S = 2.0
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    behaviour = sim.sim_file(tmp_path, cost={"batch_ms": BATCH_MS})
    with running_sidecar("--lazy-torch", "--sim", str(behaviour)) as sidecar:
        yield sidecar


class Sibling(Worker):
    """A worker that shares a machine."""

    async def post(self, free_in_ms: float = 0.0, room_ms: float = 1_000.0, grants_seen: int = 0) -> None:
        """Says how it stands, with the simulated model ready."""
        residents = [sidecar_pb2.Resident(profile_digest=SIM.digest())]
        state = sidecar_pb2.State(free_in_ms=free_in_ms, room_ms=room_ms, residents=residents, grants_seen=grants_seen)
        await self.send(state=state)

    async def offer(self, *unit_ids: str, starts_in_ms: float = 60_000.0) -> None:
        units = [
            sidecar_pb2.OfferedUnit(unit_id=unit_id, cost_ms=1.0, starts_in_ms=starts_in_ms) for unit_id in unit_ids
        ]
        await self.send(offer=sidecar_pb2.Offer(units=units))

    async def granted(self) -> sidecar_pb2.Granted:
        return await self.next("granted")

    async def not_owned(self) -> list[str]:
        return list((await self.next("not_owned")).unit_ids)

    async def refused(self) -> list[str]:
        return list((await self.next("batch_refused")).not_owned)

    async def siblings(self) -> int:
        return (await self.next("siblings")).workers


async def barrier(worker: Worker) -> bool:
    """Comes back once all that this worker said before has been obeyed."""
    await worker.run("nobody's", batch_id=999)
    return list((await worker.next("batch_refused")).not_owned) == ["nobody's"]


@contextlib.asynccontextmanager
async def attached(sidecar: Sidecar, *names: str) -> AsyncIterator[list[Sibling]]:
    """Workers on simulated devices that have said Hello and have the model, and know how many they are."""
    async with sidecar.channel() as channel:
        workers = [Sibling(channel, name) for name in names]
        for index, worker in enumerate(workers):
            await joined(worker, f"sim:{index}")
        for index, worker in enumerate(workers):
            for count in range(max(index, 1), len(names)):
                assert await worker.siblings() == count
        yield workers
        for worker in workers:
            await worker.close()


async def joined(worker: Worker, device: str) -> None:
    await worker.hello(device=device)
    status = await worker.load(SIM)
    assert status.state == sidecar_pb2.MODEL_STATE_READY, status.error


def unit(name: str, text: str) -> work_pb2.Unit:
    return work_pb2.Unit(
        id=name,
        request_id=f"request of {name}",
        tenant="t",
        task=work_pb2.TASK_ENCODE,
        profile_digest=SIM.digest(),
        items=[inference_pb2.Item(id="i", text=text).SerializeToString()],
    )


def vector(outcome: sidecar_pb2.UnitOutcome) -> np.ndarray:
    (result,) = outcome.results
    return np.frombuffer(inference_pb2.EncodeResult.FromString(result).dense.data, "<f4")


def header(granted: sidecar_pb2.GrantedUnit) -> work_pb2.Unit:
    return work_pb2.Unit.FromString(granted.header)


def unit_ids(granted: sidecar_pb2.Granted) -> list[str]:
    return [header(one).id for one in granted.units]


async def test_an_offer_finds_a_standing_state_and_the_unit_runs_there_without_being_tokenized_again(
    sidecar: Sidecar,
) -> None:
    async with attached(sidecar, "offer-0", "offer-1") as (owner, sibling):
        sent = unit("u", "a school of fish")
        (admitted,) = await owner.admit(sent, deliveries=3, traceparent=TRACEPARENT)
        await sibling.post()
        offered_ns = time.time_ns()
        await owner.offer("u")
        granted = await sibling.granted()
        (one,) = granted.units
        sent.ClearField("items")
        assert (granted.number, header(one)) == (1, sent)
        assert (one.ack_subject, one.deliveries, one.traceparent) == ("ack.u", 3, TRACEPARENT)
        assert (one.items, one.tokens, one.squared_tokens) == (1, admitted.tokens, admitted.squared_tokens)
        assert getattr(one, "from") == "offer-0"
        taken = await owner.next("taken")
        assert (list(taken.unit_ids), taken.by) == (["u"], "offer-1")
        await owner.run("u")
        assert await owner.refused() == ["u"]
        await sibling.run("u", trace=True)
        (outcome,) = (await sibling.next("batch_done")).units
    assert outcome.attempt == 3
    assert outcome.tokenize.end_unix_ns < offered_ns
    np.testing.assert_allclose(vector(outcome), sim.encode(["a school of fish"])[0], atol=1e-6)


async def test_a_state_finds_a_standing_offer_and_each_unit_is_granted_once(sidecar: Sidecar) -> None:
    async with attached(sidecar, "state-0", "state-1", "state-2") as (owner, one, two):
        await owner.admit(unit("a", "fish"), unit("b", "more fish"))
        await owner.offer("a", "b")
        await one.post()
        granted = await one.granted()
        assert sorted(unit_ids(granted)) == ["a", "b"]
        await asyncio.gather(one.post(), two.post())
        await owner.run("a")
        assert await owner.refused() == ["a"]
        await one.run("a", batch_id=1)
        await one.run("b", batch_id=2)
        assert {(await one.next("batch_done")).units[0].unit_id for _ in range(2)} == {"a", "b"}
        assert await barrier(two) and not two.has_heard("granted") and not one.has_heard("granted")


async def test_nothing_moves_to_a_sibling_that_is_busy_full_or_without_the_model(sidecar: Sidecar) -> None:
    async with attached(sidecar, "keeps-0", "keeps-1") as (owner, sibling):
        await owner.admit(unit("u", "fish"))
        await owner.offer("u", starts_in_ms=500.0)
        assert await barrier(owner)
        await sibling.post(free_in_ms=1_000.0)
        await sibling.post(room_ms=0.5)
        await sibling.send(state=sidecar_pb2.State(room_ms=1_000.0))
        assert await barrier(sibling) and not sibling.has_heard("granted")
        await owner.run("u")
        assert (await owner.next("batch_done")).units[0].unit_id == "u"


async def test_the_units_of_a_dead_worker_go_to_its_sibling_from_its_batch_too(sidecar: Sidecar) -> None:
    async with attached(sidecar, "dead-0", "dead-1") as (dying, heir):
        await dying.admit(unit("waits", "fish"), unit("runs", "more fish"))
        await heir.post(room_ms=0.0)
        await dying.run("runs")
        assert await barrier(dying)
        await dying.close()
        assert await heir.siblings() == 0
        granted = await heir.granted()
        assert unit_ids(granted) == ["waits", "runs"]
        await heir.run("waits", "runs")
        done = await heir.next("batch_done")
    found = np.stack([vector(outcome) for outcome in done.units])
    np.testing.assert_allclose(found, sim.encode(["fish", "more fish"]), atol=1e-6)


async def test_a_worker_that_is_back_is_granted_what_no_sibling_took(sidecar: Sidecar) -> None:
    async with attached(sidecar, "back-0", "back-1") as (dying, sibling):
        await dying.admit(unit("a", "fish"), unit("b", "more fish"))
        await dying.close()
        assert await sibling.siblings() == 0
        async with sidecar.channel() as channel:
            back = Sibling(channel, "back-0")
            await joined(back, "sim:0")
            granted = await back.granted()
            assert (granted.number, unit_ids(granted)) == (1, ["a", "b"])
            assert {getattr(one, "from") for one in granted.units} == {"back-0"}
            assert (await back.siblings(), await sibling.siblings()) == (1, 1)
            # It may offer them like any other.
            await sibling.post()
            await back.offer("b")
            assert unit_ids(await sibling.granted()) == ["b"]
            await back.run("a")
            assert (await back.next("batch_done")).units[0].unit_id == "a"
            await back.close()


async def test_a_silent_workers_units_go_to_its_sibling_and_it_hears_of_it(sidecar: Sidecar) -> None:
    async with attached(sidecar, "silent-0", "silent-1") as (silent, heir):
        await silent.admit(unit("u", "fish"))
        await silent.post(room_ms=0.0)
        since = time.monotonic()
        while not heir.has_heard("granted"):
            await heir.post(room_ms=0.0)
            await asyncio.sleep(0.1)  # its pace, not a wait: it stops when it was granted the unit
            assert time.monotonic() - since < 2 * SILENCE_S
        assert time.monotonic() - since > SILENCE_S - 0.1
        assert unit_ids(await heir.granted()) == ["u"]
        taken = await silent.next("taken")
        assert (list(taken.unit_ids), taken.by) == (["u"], "silent-1")
        await silent.run("u")
        assert await silent.refused() == ["u"]


async def test_units_are_returned_as_they_came_and_forgotten(sidecar: Sidecar) -> None:
    async with attached(sidecar, "return-0") as (owner,):
        small, large = unit("small", "fish"), unit("large", "fish " * 30_000)
        await owner.admit(small, traceparent=TRACEPARENT)
        await owner.admit(large)
        await owner.send(return_units=sidecar_pb2.ReturnUnits(unit_ids=["large", "small", "large", "other"]))
        returned = await owner.next("returned")
        assert [one.unit for one in returned.units] == [large.SerializeToString(), small.SerializeToString()]
        assert [one.ack_subject for one in returned.units] == ["ack.large", "ack.small"]
        assert [one.traceparent for one in returned.units] == ["", TRACEPARENT]
        assert await owner.not_owned() == ["large", "other"]
        await owner.run("small")
        assert await owner.refused() == ["small"]
        (again,) = await owner.admit(small)
        assert again.owner == "return-0"


async def test_what_a_worker_does_not_own_it_can_neither_offer_nor_return(sidecar: Sidecar) -> None:
    async with attached(sidecar, "bad-0", "bad-1") as (one, two):
        await one.admit(unit("runs", "fish"), unit("held", "fish"), unit("bad", "fish"))
        await two.admit(unit("other", "fish"))
        await two.post()
        await one.run("runs")
        await one.offer("other", "runs", "held", "held", "unknown")
        assert await one.not_owned() == ["other", "runs", "held", "unknown"]
        assert unit_ids(await two.granted()) == ["held"]
        await one.send(return_units=sidecar_pb2.ReturnUnits(unit_ids=["held", "other", "runs"]))
        assert await one.not_owned() == ["held", "other", "runs"]
        assert not one.has_heard("returned")
        nan = float("nan")
        worst = sidecar_pb2.OfferedUnit(unit_id="bad", cost_ms=nan, starts_in_ms=nan)
        await one.send(offer=sidecar_pb2.Offer(units=[worst]))
        await two.send(state=sidecar_pb2.State(free_in_ms=nan, room_ms=nan))
        await one.run("bad", batch_id=2)
        done = {(await one.next("batch_done")).units[0].unit_id for _ in range(2)}
        assert done == {"runs", "bad"}
