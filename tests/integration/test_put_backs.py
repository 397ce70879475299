"""Units that change hands: between workers on one machine, and back to the queue for another machine."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.work.v1 import work_pb2
from shoal_common import limits, telemetry
from shoal_common.nats_session import BrokerTimeout
from tests.support.fake_sidecar import FakeSidecar
from tests.support.nats import NatsServer
from tests.support.until import until
from tests.support.worker_mesh import CATALOGUE, Mesh, WorkerHere, registered

UNITS = 10
LONG = 400
"""Tokens that a unit really has, which make a batch of it; its gateway guessed 20."""
FIRST, SECOND = "worker-0", "worker-1"


@pytest.fixture
async def mesh(nats_server: NatsServer) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:  # Unix paths are short.
        async with Mesh(nats_server, Path(folder)).running(works=False) as running:
            yield running


async def swamped(mesh: Mesh, **fields) -> list[str]:
    """The first worker stands still with more in hand than its next batches take. Returns the ids of all units.

    Two batches run and one stands ready; the others wait.
    """
    mesh.sidecar.gates[FIRST].clear()
    mesh.sidecar.count = lambda unit: LONG
    ids = [await mesh.gateway.publish(**fields) for _ in range(UNITS)]
    await mesh.start()
    await until(lambda: len(mesh.sidecar.batches) == 3 and len(mesh.sidecar.units) == UNITS)
    assert len(waiting(mesh)) >= UNITS // 2
    return ids


def waiting(mesh: Mesh) -> list[str]:
    """Units that no batch has."""
    return [unit_id for unit_id in mesh.sidecar.units if unit_id not in {*itertools.chain(*mesh.sidecar.batches)}]


async def offered(mesh: Mesh) -> list[str]:
    """What the first worker offers."""
    return await until(lambda: mesh.sidecar.offers[FIRST] and mesh.sidecar.offers[FIRST][-1])


def answerers(mesh: Mesh, *unit_ids: str) -> set[str]:
    """The workers that answered units, each once."""
    parts = [mesh.gateway.parts[unit_id] for unit_id in unit_ids]
    assert all(len(of_unit) == 1 for of_unit in parts), "nothing is answered twice"
    return {part.worker for (part,) in parts}


async def test_a_granted_unit_is_answered_and_acked_by_its_new_owner(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    await mesh.start_worker(SECOND)
    moved = (await offered(mesh))[:3]
    mesh.sidecar.grant(SECOND, *moved)
    await until(lambda: mesh.gateway.has(*moved))
    assert answerers(mesh, *moved) == {SECOND}
    assert {part.attempt for unit_id in moved for part in mesh.gateway.parts[unit_id]} == {1}
    await until(lambda: queued(mesh, UNITS - len(moved)), message="the new owner acks")
    assert len(mesh.gateway.parts) == len(moved), "the first worker stands still"
    assert not await mesh.gateway.redelivered()
    assert len([*itertools.chain(*mesh.sidecar.admits)]) == UNITS, "nothing is tokenized twice"
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    answerers(mesh, *ids)
    await until(mesh.gateway.is_empty)


async def test_states_tell_what_was_granted(mesh: Mesh) -> None:
    await swamped(mesh)
    await mesh.start_worker(SECOND)
    free = await until(lambda: mesh.sidecar.states[SECOND] and mesh.sidecar.states[SECOND][-1])
    assert (free.free_in_ms, free.grants_seen) == (0, 0)
    assert free.room_ms > 0
    assert [resident.profile_digest for resident in free.residents] == [mesh.model.digest]
    mesh.sidecar.gates[SECOND].clear()
    for number, unit_id in enumerate((await offered(mesh))[:3], start=1):
        mesh.sidecar.grant(SECOND, unit_id)
        await until(lambda n=number: mesh.sidecar.states[SECOND][-1].grants_seen == n)
    assert mesh.sidecar.states[SECOND][-1].free_in_ms > 0
    mesh.sidecar.gate.set()


async def test_what_is_over_is_offered_last_to_run_first_until_it_is_gone(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    assert not mesh.sidecar.offers[FIRST], "nobody hears it"
    await mesh.start_worker(SECOND)
    first = await offered(mesh)
    assert first == [unit_id for unit_id in reversed(ids) if unit_id in first]
    mesh.sidecar.grant(SECOND, *first)
    await until(lambda: mesh.gateway.has(*first))
    assert all(not set(offer) & set(first) for offer in mesh.sidecar.offers[FIRST][1:]), "they are no longer its own"


async def test_a_worker_without_siblings_posts_nothing(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    assert not mesh.sidecar.states
    assert not mesh.sidecar.offers


async def test_a_worker_with_siblings_shows_that_it_lives_and_no_more_once_they_are_gone(mesh: Mesh) -> None:
    await mesh.start()
    second = await mesh.start_worker(SECOND)
    await until(lambda: mesh.sidecar.states[FIRST])
    loop = asyncio.get_running_loop()
    began_s, said = loop.time(), len(mesh.sidecar.states[FIRST])
    await until(lambda: len(mesh.sidecar.states[FIRST]) >= said + 4)
    assert 0.5 < loop.time() - began_s < 2.0, "idle workers say so at least twice a second, and not much more often"
    await second.end()
    await until(lambda: list(mesh.sidecar.workers) == [FIRST])
    served = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(served))
    said = len(mesh.sidecar.states[FIRST])
    quiet_until_s = loop.time() + 1.0
    await until(lambda: loop.time() > quiet_until_s)
    assert len(mesh.sidecar.states[FIRST]) == said


async def test_a_taken_unit_is_neither_acked_nor_kept_from_being_delivered_again(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    acks: list[str] = []

    async def on_ack(msg) -> None:
        acks.append(msg.subject)

    await mesh.start_worker(SECOND)
    [lost] = (await offered(mesh))[:1]
    mesh.sidecar.grant("nobody", lost)
    subject = mesh.sidecar.admitted[lost].ack_subject
    await mesh.gateway.session.subscribe("$JS.ACK.>", on_ack)
    await until(lambda: mesh.worker._held.get(lost) is None)
    acks.clear()
    await until(lambda: mesh.gateway.has(lost), 2 * limits.ACK_WAIT_S, "it was not delivered again")
    assert answerers(mesh, lost) == {SECOND}
    assert mesh.gateway.parts[lost][0].attempt == 1
    assert subject not in acks
    assert acks, "what it still has it keeps"
    assert await mesh.gateway.redelivered() in (0, 1), "no other was delivered again"
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    answerers(mesh, *ids)


async def test_a_restarted_worker_goes_on_with_what_it_had(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    await mesh.first.kill()
    await mesh.start_worker(FIRST)
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids), limits.ACK_WAIT_S / 2, "it waits for another delivery")
    await until(mesh.gateway.is_empty)
    answerers(mesh, *ids)
    assert not mesh.sidecar.released
    assert len([*itertools.chain(*mesh.sidecar.admits)]) == UNITS, "nothing is tokenized twice"


async def test_units_of_a_dead_worker_are_answered_by_a_sibling(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    await mesh.start_worker(SECOND)
    await offered(mesh)
    await mesh.first.kill()
    await until(lambda: list(mesh.sidecar.workers) == [SECOND])
    left = list(mesh.sidecar.units)
    mesh.sidecar.grant(SECOND, *left)
    await until(lambda: mesh.gateway.has(*ids), limits.ACK_WAIT_S / 2, "it waits for another delivery")
    assert answerers(mesh, *left) == {SECOND}
    await until(mesh.gateway.is_empty)


async def test_old_units_are_kept_from_being_delivered_again_as_soon_as_they_are_granted(mesh: Mesh) -> None:
    """The last owner may have said long ago that it works on them."""
    await swamped(mesh)
    loop = asyncio.get_running_loop()
    old_at_s = loop.time() + limits.IN_PROGRESS_PERIOD_S
    await until(lambda: loop.time() > old_at_s)
    said: list[str] = []

    async def on_ack(msg) -> None:
        said.append(msg.subject)

    second = await mesh.start_worker(SECOND)
    mesh.sidecar.gates[SECOND].clear()
    moved = (await offered(mesh))[:1]
    await second.session.subscribe(mesh.sidecar.admitted[moved[0]].ack_subject, on_ack)
    await second.session.nc.flush()
    mesh.sidecar.grant(SECOND, *moved)
    granted_s = loop.time()
    await until(lambda: said)
    assert loop.time() - granted_s < limits.IN_PROGRESS_PERIOD_S / 2
    mesh.sidecar.gate.set()


async def test_a_batch_that_names_a_moved_unit_runs_without_it(mesh: Mesh) -> None:
    mesh.sidecar.gates[FIRST].clear()
    await mesh.start()
    first = [await mesh.gateway.publish() for _ in range(2)]
    await until(lambda: len(mesh.sidecar.batches) == 2)
    ids = [await mesh.gateway.publish() for _ in range(10)]
    # Moved before the worker's RunBatch came, which was on its way before it could hear of that.
    await until(lambda: mesh.sidecar.units.keys() - set(first))
    moved = next(iter(mesh.sidecar.units.keys() - set(first)))
    mesh.sidecar.owners[moved] = "nobody"
    mesh.sidecar.gates[FIRST].set()
    rest = [unit_id for unit_id in (*first, *ids) if unit_id != moved]
    await until(lambda: mesh.gateway.has(*rest), limits.ACK_WAIT_S / 2)
    assert not mesh.gateway.has(moved)
    await until(lambda: mesh.gateway.has(moved), 2 * limits.ACK_WAIT_S, "it is delivered again, since nobody ran it")
    answerers(mesh, *rest, moved)


async def test_units_that_turn_out_not_to_be_its_own_are_forgotten(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    await mesh.start_worker(SECOND)
    strange = (await offered(mesh))[:2]
    for unit_id in strange:
        mesh.sidecar.owners[unit_id] = "nobody"
    mesh.sidecar.disown(FIRST, *strange)
    await until(lambda: not any(mesh.worker._held.get(unit_id) for unit_id in strange))
    mesh.sidecar.gates[FIRST].set()
    rest = [unit_id for unit_id in ids if unit_id not in strange]
    await until(lambda: mesh.gateway.has(*rest))
    assert not mesh.gateway.has(*strange)


async def test_a_unit_that_a_sibling_has_is_left_to_it(mesh: Mesh) -> None:
    await mesh.start()
    mesh.sidecar.workers["sibling"] = asyncio.Queue()
    mesh.sidecar.owners["shared"] = "sibling"
    await mesh.gateway.publish(id="shared")
    await until(lambda: mesh.sidecar.admits)
    served = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(served))
    assert mesh.worker._held.get("shared") is None
    assert list(mesh.gateway.parts) == [served]
    assert await mesh.gateway.queued() == 1


async def test_a_unit_whose_model_is_not_ready_is_parked_until_it_is(mesh: Mesh) -> None:
    await swamped(mesh)
    mesh.sidecar.loads_models = False
    await mesh.start_worker(SECOND)
    state = await until(lambda: next((one for one in mesh.sidecar.states[SECOND] if one.residents), None))
    assert state.residents[0].profile_digest == mesh.model.digest
    assert state.residents[0].load_ms > 0
    moved = (await offered(mesh))[:2]
    mesh.sidecar.grant(SECOND, *moved)
    await until(lambda: mesh.sidecar.states[SECOND][-1].grants_seen == 1)
    await until(lambda: mesh.sidecar.loads == [mesh.model.digest] * 2)
    mesh.sidecar.ready(SECOND, mesh.model.digest)
    await until(lambda: mesh.gateway.has(*moved))
    assert answerers(mesh, *moved) == {SECOND}
    await until(lambda: mesh.sidecar.states[SECOND][-1].residents[0].load_ms == 0)
    assert len([*itertools.chain(*mesh.sidecar.admits)]) == UNITS, "it is not admitted again"


async def test_former_units_of_a_lane_that_is_gone_are_let_go(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    await mesh.first.kill()
    other = registered(CATALOGUE.read_text().replace("name: minilm", "name: other"))
    mesh.model = other
    await mesh.start_worker(FIRST)
    await until(lambda: sorted(mesh.sidecar.released) == sorted(ids))
    assert await mesh.gateway.queued() == UNITS, "they are delivered again, to whoever serves the lane"


@pytest.mark.parametrize("header", [b"\xff\xff", b"", work_pb2.Unit(id="x", reply_subject="a b").SerializeToString()])
async def test_a_grant_that_cannot_be_read_harms_no_other(mesh: Mesh, header: bytes) -> None:
    await swamped(mesh)
    await mesh.start_worker(SECOND)
    bad, good = (await offered(mesh))[:2]
    mesh.sidecar.grant(SECOND, bad, header=header or b"\x0a")
    mesh.sidecar.grant(SECOND, good)
    await until(lambda: mesh.gateway.has(good))


async def test_a_stopping_worker_offers_all_that_waits_and_takes_nothing(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    left = waiting(mesh)
    await mesh.start_worker(SECOND)
    await offered(mesh)
    mesh.first.stop.now()
    await until(lambda: set(left) <= set(mesh.sidecar.offers[FIRST][-1]))
    assert mesh.sidecar.states[FIRST][-1].room_ms == 0
    mesh.sidecar.grant(SECOND, *left)
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    assert answerers(mesh, *left) == {SECOND}
    await until(mesh.gateway.is_empty)


async def test_a_sampled_unit_keeps_its_trace(mesh: Mesh) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await swamped(mesh, headers={telemetry.TRACEPARENT: parent})
    second = await mesh.start_worker(SECOND)
    mesh.sidecar.gates[SECOND].clear()
    [moved] = (await offered(mesh))[:1]
    mesh.sidecar.grant(SECOND, moved)
    unit = await until(lambda: second.worker._held.get(moved))
    assert unit.traceparent == parent
    mesh.sidecar.gate.set()


# Back to the queue.


async def far_worker(mesh: Mesh) -> tuple[FakeSidecar, WorkerHere]:
    """A worker on another machine, with nothing to do."""
    sidecar = await mesh.another_sidecar()
    return sidecar, await mesh.start_worker("far", sidecar)


def lane_is_idle(mesh: Mesh) -> None:
    """The scheduler says so to the first worker."""
    mesh.worker._idle_elsewhere(frozenset({mesh.model.lane.token}))


async def test_what_no_sibling_takes_goes_back_to_the_queue_for_an_idle_machine(mesh: Mesh) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    ids = await swamped(mesh, headers={telemetry.TRACEPARENT: parent})
    far, _ = await far_worker(mesh)
    await until(lambda: far.loads)
    assert not mesh.sidecar.returns
    spent_ms = (loop.time() - began_s) * 1e3
    lane_is_idle(mesh)
    moved = await until(lambda: [*itertools.chain(*mesh.sidecar.returns)])
    await until(lambda: mesh.gateway.has(*moved))
    assert answerers(mesh, *moved) == {"far"}
    for unit_id in moved:
        admitted = far.admitted[unit_id]
        unit = work_pb2.Unit.FromString(admitted.unit)
        assert (unit.put_backs, admitted.deliveries, admitted.traceparent) == (1, 1, parent)
        assert unit.items == [b"an item"]
        assert unit.remaining_ms <= 30_000 - spent_ms + 500, "its deadline stays where it was"
        assert unit.remaining_ms > 20_000
    assert not any(mesh.worker._held.get(unit_id) for unit_id in moved)
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    answerers(mesh, *ids)
    await until(mesh.gateway.is_empty)
    assert not await mesh.gateway.redelivered()


async def test_nothing_goes_back_when_the_other_machines_lane_is_another(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    mesh.worker._idle_elsewhere(frozenset({"another-lane"}))
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    assert not mesh.sidecar.returns


async def test_a_unit_that_cannot_be_put_back_runs_here(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*args, **kwargs) -> int:
        raise BrokerTimeout("no acknowledgement")

    ids = await swamped(mesh)
    monkeypatch.setattr(mesh.session, "publish", fail)
    lane_is_idle(mesh)
    moved = await until(lambda: [*itertools.chain(*mesh.sidecar.returns)])
    await until(lambda: all(unit_id in mesh.sidecar.units for unit_id in moved), message="they are admitted again")
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids))
    assert answerers(mesh, *ids) == {FIRST}
    assert max(Counter(itertools.chain(*mesh.sidecar.returns)).values()) == 1, "each is tried once"
    await until(mesh.gateway.is_empty)


async def test_the_next_copy_may_come_before_the_last_one_is_acked(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has stored it, and may deliver it here again, before it says so."""
    ids = await swamped(mesh)
    publish, release = mesh.session.publish, asyncio.Event()

    async def publish_late(*args, **kwargs) -> int:
        sequence = await publish(*args, **kwargs)
        await release.wait()
        return sequence

    monkeypatch.setattr(mesh.session, "publish", publish_late)
    lane_is_idle(mesh)
    moved = await until(lambda: [*itertools.chain(*mesh.sidecar.returns)])
    mesh.worker._idle_elsewhere(frozenset())
    mesh.sidecar.gates[FIRST].set()
    await until(lambda: mesh.gateway.has(*ids), message="the new copies are served")
    release.set()
    await until(mesh.gateway.is_empty, limits.ACK_WAIT_S, "both copies are acked")
    answerers(mesh, *ids)
    assert set(moved) <= set(ids)


# Cancellation.


async def test_a_cancelled_unit_leaves_the_backlog_and_the_offer(mesh: Mesh) -> None:
    ids = await swamped(mesh)
    await mesh.start_worker(SECOND)
    gone = (await offered(mesh))[:3]
    await mesh.gateway.cancel(*gone)
    await until(lambda: set(gone) <= set(mesh.sidecar.released))
    mesh.sidecar.gates[FIRST].set()
    rest = [unit_id for unit_id in ids if unit_id not in gone]
    await until(lambda: mesh.gateway.has(*rest))
    await until(mesh.gateway.is_empty)
    assert not set(gone) & set(mesh.gateway.parts)
    assert not set(gone) & {*itertools.chain(*mesh.sidecar.batches)}


async def test_a_grant_of_a_cancelled_unit_is_dropped(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    await swamped(mesh)
    second = await mesh.start_worker(SECOND)
    [gone] = (await offered(mesh))[:1]
    monkeypatch.setattr(mesh.worker._held, "cancel", lambda *args: [])  # The first worker has not heard of it yet.
    await mesh.gateway.cancel(gone)
    await until(lambda: second.worker._held.is_cancelled(gone, asyncio.get_running_loop().time()))
    mesh.sidecar.grant(SECOND, gone)
    await until(lambda: gone in mesh.sidecar.released)
    await until(lambda: queued(mesh, UNITS - 1), message="it is acked")
    assert gone not in {*itertools.chain(*mesh.sidecar.batches)}


async def test_a_granted_unit_that_waits_for_its_model_can_be_cancelled(mesh: Mesh) -> None:
    await swamped(mesh)
    mesh.sidecar.loads_models = False
    second = await mesh.start_worker(SECOND)
    [gone] = (await offered(mesh))[:1]
    mesh.sidecar.grant(SECOND, gone)
    await until(lambda: second.worker._held.get(gone))
    await mesh.gateway.cancel(gone)
    await until(lambda: gone in mesh.sidecar.released)
    await until(lambda: queued(mesh, UNITS - 1), message="it is acked")


async def test_a_cancelled_unit_that_runs_finishes_unsent(mesh: Mesh) -> None:
    await mesh.start()
    mesh.sidecar.gate.clear()
    gone, kept = [await mesh.gateway.publish() for _ in range(2)]
    await until(lambda: {*itertools.chain(*mesh.sidecar.batches)} == {gone, kept})
    await mesh.gateway.cancel(gone)
    await until(lambda: mesh.worker._held.is_cancelled(gone, asyncio.get_running_loop().time()))
    mesh.sidecar.gate.set()
    await until(lambda: mesh.gateway.has(kept))
    await until(mesh.gateway.is_empty)
    assert gone not in mesh.gateway.parts
    assert not mesh.sidecar.released, "the sidecar forgets it with its batch"


async def test_a_unit_whose_deadline_passes_while_it_runs_finishes_unsent(mesh: Mesh) -> None:
    await mesh.start()
    mesh.sidecar.gate.clear()
    late = await mesh.gateway.publish(remaining_ms=300)
    await until(lambda: mesh.sidecar.batches)
    unit = mesh.worker._held.get(late)
    assert unit is not None
    await until(lambda: asyncio.get_running_loop().time() > unit.deadline_s)
    mesh.sidecar.gate.set()
    await until(mesh.gateway.is_empty)
    assert late not in mesh.gateway.parts


async def queued(mesh: Mesh, count: int) -> bool:
    """Whether so many messages are in the lane's stream."""
    return await mesh.gateway.queued() == count
