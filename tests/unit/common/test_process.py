"""A stop ends a service: in order once it stands, at once while it waits for others, and never late."""

from __future__ import annotations

import asyncio

import pytest

from shoal_common import process
from shoal_common.process import Stop, _until_stopped


async def test_a_service_that_still_waits_is_ended_at_once() -> None:
    stop, ended = Stop(), []

    async def service() -> None:
        try:
            await asyncio.Future()  # a broker that is away
        finally:
            ended.append(True)

    running = asyncio.create_task(_until_stopped(service(), stop))
    await asyncio.sleep(0)
    stop.now()
    await asyncio.wait_for(running, 1)
    assert ended


async def test_a_service_that_stands_ends_in_its_own_way() -> None:
    stop, drained = Stop(), asyncio.Event()

    async def service() -> None:
        await stop.wait()
        await asyncio.sleep(0.05)
        drained.set()

    running = asyncio.create_task(_until_stopped(service(), stop))
    await asyncio.sleep(0)
    stop.now()
    await asyncio.wait_for(running, 5)
    assert drained.is_set()


async def test_a_service_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "DRAIN_S", 0.05)
    stop = Stop()

    async def service() -> None:
        await stop.wait()
        await asyncio.Future()

    stop.now()
    await asyncio.wait_for(_until_stopped(service(), stop), 5)


async def test_a_fault_is_not_swallowed() -> None:
    async def service() -> None:
        raise OSError("taken")

    with pytest.raises(OSError, match="taken"):
        await _until_stopped(service(), Stop())
