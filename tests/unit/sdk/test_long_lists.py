"""Lists of many requests: pipelined, in order, and whole after a break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import numpy as np
import pytest

import shoal
from shoal.aio import AHEAD, IN_FLIGHT
from shoal.chunks import CHUNK_ITEMS
from tests.unit.sdk.fake_mesh import BREAK, HANG, FakeMesh, busy, status

TEXTS = [str(number) for number in range(5000)]


async def test_5000_texts_flow_and_come_back_in_order(fake: FakeMesh) -> None:
    fake.hold_until = IN_FLIGHT  # answers nothing before so many are in flight, then the last first
    seen: list[int] = []
    async with shoal.aio.connect(fake.target) as mesh:
        answer = await mesh.encode_items(TEXTS, ids=TEXTS, progress=seen.append)
    assert [result.id for result in answer.results] == TEXTS
    assert [result.index for result in answer.results] == list(range(5000))
    assert np.array_equal(answer.vectors("f32")[:, 0], np.arange(5000))
    assert set(fake.ways) == {"Infer"}
    assert max(len(heard.request.items) for heard in fake.heard) == CHUNK_ITEMS
    assert fake.most_in_flight == IN_FLIGHT
    assert seen == [*range(CHUNK_ITEMS, 5000, CHUNK_ITEMS), 5000]
    (origin,) = answer.provenance
    assert [run.first_index for run in origin.runs] == list(range(0, 5000, CHUNK_ITEMS))


async def test_chunks_that_are_refused_go_again(fake: FakeMesh) -> None:
    fake.faults.extend([None, busy(1), None, busy(1), busy(1)])
    async with shoal.aio.connect(fake.target) as mesh:
        vectors = await mesh.encode(TEXTS[:500])
    assert vectors[:, 0].tolist() == list(range(500))
    assert len(fake.heard) == -(-500 // CHUNK_ITEMS) + 3


async def test_a_broken_stream_is_opened_again_for_what_is_missing(fake: FakeMesh) -> None:
    fake.faults.extend([None, None, BREAK, None, BREAK])
    async with shoal.aio.connect(fake.target) as mesh:
        vectors = await mesh.encode(TEXTS)
    assert np.array_equal(vectors[:, 0], np.arange(5000))
    assert len(fake.heard) > -(-5000 // CHUNK_ITEMS)


async def test_a_restarted_mesh_gets_what_is_missing(fake: FakeMesh) -> None:
    fake.faults.extend([HANG] * 3)
    seen: list[int] = []
    async with shoal.aio.connect(fake.target) as mesh:
        work = asyncio.create_task(mesh.encode(TEXTS[:1000], progress=seen.append))
        while len(fake.heard) < IN_FLIGHT:
            await asyncio.sleep(0)
        await asyncio.to_thread(fake.restart)
        vectors = await work
    assert np.array_equal(vectors[:, 0], np.arange(1000))
    assert seen[-1] == 1000


async def test_a_call_error_of_one_chunk_ends_the_call(fake: FakeMesh) -> None:
    fake.faults.extend([HANG, None, status(grpc.StatusCode.NOT_FOUND, "no such model")])
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.NotFound, match="no such model"):
            await mesh.encode(TEXTS)
    assert len(fake.heard) < 2 * AHEAD


async def test_one_deadline_for_the_whole_list(fake: FakeMesh) -> None:
    fake.faults.append(HANG)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.DeadlineExceeded, match=r"within 0\.3 s"):
            await mesh.encode(TEXTS, timeout=0.3)
    assert 0.3 <= loop.time() - begin < 5
    assert all(0 < heard.limit_s <= 0.3 for heard in fake.heard)


async def test_a_stream_is_read_as_it_is_used(fake: FakeMesh) -> None:
    read = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal read
        while True:
            yield str(read)
            read += 1

    async with shoal.aio.connect(fake.target) as mesh:
        outcomes = mesh.encode_stream(endless())
        first = [await anext(outcomes) for _ in range(1000)]
        await outcomes.aclose()
    assert [outcome.index for outcome in first] == list(range(1000))
    assert read <= 1000 + (AHEAD + 3) * CHUNK_ITEMS


async def test_a_stream_gives_what_is_done_before_the_text_that_cannot_be_sent(fake: FakeMesh) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS[:100]
        yield "\ud800"

    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.InvalidText, match=r"texts\[100\]"):
            async for _ in mesh.encode_stream(texts()):
                pass
        assert [outcome async for outcome in mesh.encode_stream([])] == []
        with pytest.raises(TypeError, match="one str"):
            mesh.encode_stream("text")


async def test_cancelling_ends_the_stream(fake: FakeMesh) -> None:
    fake.faults.extend([HANG] * IN_FLIGHT)
    async with shoal.aio.connect(fake.target) as mesh:
        work = asyncio.create_task(mesh.encode(TEXTS))
        while len(fake.heard) < IN_FLIGHT:
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (await mesh.encode("7"))[0] == 7
    assert len(asyncio.all_tasks()) == 1
