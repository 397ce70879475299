"""Coroutines side by side: all results in order, a bound on how many at once, one plain error."""

from __future__ import annotations

import asyncio

import pytest

from shoal_common.together import together


async def test_results_come_in_the_order_of_the_coroutines() -> None:
    async def one(n: int) -> int:
        await asyncio.sleep(0.01 * (5 - n))
        return n

    assert await together((one(n) for n in range(5)), 3) == [0, 1, 2, 3, 4]
    assert await together([], 1) == []


async def test_no_more_than_so_many_run_at_once() -> None:
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await together((one() for _ in range(20)), 4)
    assert most == 4


@pytest.mark.filterwarnings("error")
async def test_the_first_error_is_raised_itself_and_ends_the_others() -> None:
    ended: list[int] = []

    async def one(n: int) -> None:
        if n == 1:
            raise KeyError("first")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(n)

    with pytest.raises(KeyError, match="first"):
        await together((one(n) for n in range(5)), 2)
    assert {0} <= set(ended) <= {0, 2}, "at most one had taken the turn of the one that failed"
