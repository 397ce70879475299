"""The event loop on a thread of its own that all blocking clients of a process share.

One, not one a client: grpc.aio serves the loops of a process from one completion queue, and wakes all
of them for each event.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_loops: dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns or raises. An interrupt of the caller, as by Ctrl-C, cancels it.

    Raises RuntimeError on the loop's own thread, where waiting would never end.
    """
    loop = _loop(os.getpid())
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError("a callback of the blocking client cannot call it again")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    finally:
        future.cancel()


def iterate(values: AsyncGenerator[T, None]) -> Iterator[T]:
    """The generator's values, each computed as it is asked for; it is closed when the iterator is."""
    turn = asyncio.Lock()  # an interrupted step may still be ending when the generator is closed

    async def step() -> tuple[T] | None:
        async with turn:
            try:
                return (await anext(values),)
            except StopAsyncIteration:
                return None

    async def close() -> None:
        async with turn:
            await values.aclose()

    try:
        while (value := run(step())) is not None:
            yield value[0]
    finally:
        loop = _loop(os.getpid())
        if sys.is_finalizing():  # the loop's thread is gone
            pass
        elif asyncio._get_running_loop() is loop:  # the iterator was dropped, and collected on that thread
            loop.create_task(close())
        else:
            run(close())


def _loop(process: int) -> asyncio.AbstractEventLoop:
    """The process's loop; a fork has another."""
    with _starting:
        if process not in _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="shoal", daemon=True).start()
            _loops[process] = loop
        return _loops[process]
