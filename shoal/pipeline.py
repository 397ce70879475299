"""Keeps a bounded number of jobs running, and gives their results in the order of the jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


async def pipelined(
    jobs: AsyncIterator[J], run: Callable[[J], Awaitable[R]], *, width: int, ahead: int
) -> AsyncGenerator[R, None]:
    """Yields run(job) for each job, in order.

    At most `width` jobs run at once; at most `ahead` have been begun and not yielded, so that one slow
    job does not idle the others at once. The first failure is raised and cancels the rest, as does
    closing the generator.
    """
    slots = asyncio.Semaphore(width)

    async def one(job: J) -> R:
        async with slots:
            return await run(job)

    async def pull() -> tuple[J] | None:
        try:
            return (await anext(jobs),)
        except StopAsyncIteration:
            return None

    begun: deque[asyncio.Task[R]] = deque()
    pulling: asyncio.Task[tuple[J] | None] | None = asyncio.create_task(pull())
    try:
        while pulling or begun:
            if pulling and pulling.done() and len(begun) < ahead:
                job = pulling.result()
                if job is None:
                    pulling = None
                else:
                    begun.append(asyncio.create_task(one(job[0])))
                    pulling = asyncio.create_task(pull())
            for task in begun:
                if task.done():
                    task.result()
            while begun and begun[0].done():
                yield begun.popleft().result()
            waiting: set[asyncio.Task[R] | asyncio.Task[tuple[J] | None]] = {t for t in begun if not t.done()}
            if pulling and len(begun) < ahead:
                waiting.add(pulling)
            if waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = [*begun, pulling] if pulling else list(begun)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
