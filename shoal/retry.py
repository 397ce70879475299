"""Decides whether a failed request is sent again, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shoal.deadline import Deadline
from shoal.errors import CallError, DeadlineExceeded, Overloaded, Unavailable

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0

T = TypeVar("T")


def wait_s(error: CallError, failures: int, draw: Callable[[], float] = random.random) -> float | None:
    """Seconds to wait after the `failures`-th failure in a row (from 1), or None to give up.

    The mesh's own RetryInfo goes first. Without it only Unavailable is tried again, after 0.1 s and
    twice as long each time, up to 2 s, of which `draw` (from [0, 1)) takes away up to half.
    """
    if not isinstance(error, Overloaded | Unavailable):
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s
    if isinstance(error, Overloaded):
        return None
    longest = min(FIRST_WAIT_S * 2 ** min(failures - 1, 16), LONGEST_WAIT_S)
    return longest * (1 - draw() / 2)


async def retrying(
    attempt: Callable[[float], Awaitable[T]],
    deadline: Deadline,
    *,
    worthwhile: Callable[[CallError], bool] = lambda error: True,
) -> T:
    """What `attempt` returns; it is given the seconds it may take.

    Raises the last error once the deadline leaves no room for another attempt, `worthwhile` refuses
    one, or the error is of a kind that does not pass. If the deadline cuts off a later attempt, the
    DeadlineExceeded says what came of the one before.
    """
    failures = 0
    last: CallError | None = None
    while True:
        try:
            return await attempt(deadline.left_s())
        except CallError as error:
            if last is not None and isinstance(error, DeadlineExceeded):
                error.args = (f"{error}; the try before it: {last}",)
                raise error from last
            failures += 1
            last = error
            wait = wait_s(error, failures)
            if wait is None or not worthwhile(error) or not deadline.allows(wait):
                raise
        await asyncio.sleep(wait)
