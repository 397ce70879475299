"""What a worker can never serve: kept with the reason, its caller told, and only then gone from the queue."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.rpc import code_pb2, status_pb2

from shoal.work.v1 import work_pb2
from shoal_common import dead_letters, errors, lanes, limits, queue_setup
from shoal_common.dead_letters import Letter
from tests.support.nats import NatsServer
from tests.support.until import until
from tests.support.worker_mesh import Mesh


@pytest.fixture
async def mesh(nats_server: NatsServer) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:  # Unix paths are short.
        async with Mesh(nats_server, Path(folder)).running() as running:
            yield running


async def letters(mesh: Mesh) -> list[Letter]:
    return (await dead_letters.read(mesh.gateway.session, count=10)).letters


async def told(mesh: Mesh, unit_id: str) -> errors.CallError:
    """What the unit's caller was told."""
    await until(lambda: mesh.gateway.has(unit_id))
    [result] = mesh.gateway.parts[unit_id]
    assert not result.results
    return errors.from_status(status_pb2.Status.FromString(result.error))


async def test_a_unit_over_the_limit_of_deliveries(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELIVERY_LIMIT", 0)
    unit_id = await mesh.gateway.publish()
    error = await told(mesh, unit_id)
    assert (error.code, error.reason) == (code_pb2.INTERNAL, "DELIVERY_LIMIT")
    [letter] = await letters(mesh)
    assert (letter.content.reason, letter.content.deliveries, letter.lane) == (
        "DELIVERY_LIMIT",
        1,
        mesh.model.lane.token,
    )
    assert letter.content.detail == error.message
    assert work_pb2.Unit.FromString(letter.content.unit).id == unit_id and letter.is_whole
    await until(mesh.gateway.is_empty)
    assert not mesh.sidecar.batches, "it was not run once more"


async def test_a_unit_with_a_blob_reference_that_cannot_be_right(mesh: Mesh) -> None:
    blob = work_pb2.Blob(index=7, key="items/../../etc/passwd", size_bytes=9, sha256=b"short")
    error = await told(mesh, await mesh.gateway.publish(items=[b""], blobs=[blob]))
    assert error.reason == "MALFORMED_UNIT" and "items/../../etc/passwd" in error.message
    [letter] = await letters(mesh)
    assert letter.content.detail == error.message
    await until(mesh.gateway.is_empty)


async def test_a_unit_stays_queued_until_its_letter_is_kept(mesh: Mesh) -> None:
    """Nothing is dropped because the stream of dead letters is away or full."""
    session = mesh.gateway.session
    await session.api(f"STREAM.DELETE.{lanes.DEAD_LETTER_STREAM}")
    await mesh.gateway.publish_raw(b"\xff\xff no unit", "garbage")
    good = await mesh.gateway.publish()
    await until(lambda: mesh.gateway.has(good))
    await until(lambda: _only_garbage_is_left(mesh))
    await queue_setup.ensure_streams(session)
    await until(lambda: letters(mesh), 15)
    await until(mesh.gateway.is_empty)


async def test_a_dead_units_caller_is_told_again_until_it_hears(mesh: Mesh) -> None:
    mesh.gateway.confirms = False
    unit_id = await mesh.gateway.publish(items=[])
    await until(lambda: len(mesh.gateway.parts.get(unit_id, [])) >= 2, 10)
    assert await mesh.gateway.queued() == 1, "it is acked when the caller has heard"
    mesh.gateway.confirms = True
    await until(mesh.gateway.is_empty)
    assert len(await letters(mesh)) == 1


async def _only_garbage_is_left(mesh: Mesh) -> bool:
    return await mesh.gateway.queued() == 1
