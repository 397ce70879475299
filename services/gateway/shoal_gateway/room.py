"""How many bytes of requests are held at once: what does not fit waits, or is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator

from shoal_gateway import metrics, refusals


class Room:
    """Room for so many bytes, given in the order in which it was asked for."""

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Room for the block.

        Raises:
            CallError: RESOURCE_EXHAUSTED; there is none now.
        """
        if size > self._free_bytes:
            error = refusals.full()
            metrics.rejections.add(1, reason=error.reason)
            raise error
        self._free_bytes -= size
        try:
            yield
        finally:
            self.give_back(size)

    async def wait(self, size: int) -> None:
        """Returns with the room taken, to be given back."""
        if not self._waiting and size <= self._free_bytes:
            self._free_bytes -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self.give_back(0 if turn.cancelled() else size)
            raise

    def give_back(self, size: int) -> None:
        """The room is free again: for those who wait first."""
        self._free_bytes += size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if not turn.done():
                if wanted > self._free_bytes:
                    return
                self._free_bytes -= wanted
                turn.set_result(None)
            self._waiting.popleft()
