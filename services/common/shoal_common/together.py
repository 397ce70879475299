"""Coroutines run side by side, not more than so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
    """What each returned, in their order.

    Raises:
        The first error that one of them raised, itself and in no group; the others are cancelled.
    """
    room = asyncio.Semaphore(at_once)

    async def one(coroutine: Coroutine[Any, Any, T]) -> T:
        async with room:
            return await coroutine

    waiting = list(coroutines)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(coroutine)) for coroutine in waiting]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        for coroutine in waiting:
            coroutine.close()  # Those that had no turn before another failed.
    return [task.result() for task in tasks]
