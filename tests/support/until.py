"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

POLL_S = 0.02


async def until(
    predicate: Callable[[], Any | Awaitable[Any]], timeout_s: float = 10.0, message: str = "the condition did not hold"
) -> Any:
    """Calls `predicate` (plain or async) until it gives something true, which is returned.

    Raises:
        AssertionError: it did not within the time; names what it gave last.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{message} within {timeout_s} s; last: {value!r}")
        await asyncio.sleep(POLL_S)
