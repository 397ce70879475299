"""Room for requests: given in order, refused or waited for, and never lost."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from google.rpc import code_pb2, error_details_pb2

from shoal_common.errors import CallError
from shoal_gateway.room import Room

LIMIT = 100


def free(room: Room) -> int:
    """The most that could be taken now."""
    for size in range(LIMIT, 0, -1):
        with contextlib.suppress(CallError), room.taken(size):
            return size
    return 0


def test_what_does_not_fit_is_refused_with_the_time_to_try_again() -> None:
    room = Room(LIMIT)
    with room.taken(60), pytest.raises(CallError) as refused, room.taken(41):
        pass
    assert (refused.value.code, refused.value.reason) == (code_pb2.RESOURCE_EXHAUSTED, "GATEWAY_FULL")
    assert any(isinstance(detail, error_details_pb2.RetryInfo) for detail in refused.value.details)
    assert free(room) == LIMIT


async def test_those_who_wait_are_served_in_order() -> None:
    room, served = Room(LIMIT), []

    async def ask(size: int) -> None:
        await room.wait(size)
        served.append(size)

    await room.wait(90)
    async with asyncio.TaskGroup() as tasks:
        for size in (80, 5, 20):
            tasks.create_task(ask(size))
        await asyncio.sleep(0)
        assert served == []
        room.give_back(90)
        await asyncio.sleep(0)
        assert served == [80, 5]
        room.give_back(80)
    assert served == [80, 5, 20] and free(room) == LIMIT - 25


async def test_no_room_is_lost_however_waits_end() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    room = Room(LIMIT)

    async def use() -> None:
        size = rng.randint(1, LIMIT)
        await room.wait(size)
        try:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            room.give_back(size)

    tasks = [asyncio.create_task(use()) for _ in range(200)]
    for task in rng.sample(tasks, 100):
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks, timeout=5)
    assert all(task.done() for task in tasks) and free(room) == LIMIT, f"seed {seed}"
