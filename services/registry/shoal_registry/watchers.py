"""Who watches the registry: each a bounded queue of events, so that a slow one costs nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

from shoal_common import errors
from shoal_registry.state import Event

WAITING_EVENTS = 1_024


class Watcher:
    """One watcher's events, in order."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._end: errors.CallError | None = None

    def give(self, event: Event) -> None:
        """Queues an event; ends a watcher that leaves too many waiting."""
        if len(self._events) >= WAITING_EVENTS:
            self.end(errors.overloaded("this watcher reads too slowly; watch again", 0.1, "WATCHER_TOO_SLOW"))
        if self._end is None:
            self._events.append(event)
        self._wake.set()

    def end(self, error: errors.CallError) -> None:
        """Ends the watcher: what still waits is not delivered."""
        self._end = self._end or error
        self._events.clear()
        self._wake.set()

    async def events(self) -> AsyncIterator[Event]:
        """Events as they come.

        Raises:
            CallError: why the watcher was ended.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._events:
                yield self._events.popleft()
            if self._end is not None:
                raise self._end


class Watchers:
    """All who watch this replica."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()

    @contextlib.contextmanager
    def joined(self) -> Iterator[Watcher]:
        """A watcher that gets every event published while the block runs."""
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def publish(self, events: Iterable[Event]) -> None:
        """Gives events to everybody, in order."""
        for event in events:
            for watcher in self._watchers:
                watcher.give(event)

    def close(self) -> None:
        """Ends every watcher: the process stops."""
        for watcher in self._watchers:
            watcher.end(errors.unavailable("the registry is stopping", 0.5))
