"""The lane states that gateways watch: each watcher gets all once, then what changed, and how many watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping

from shoal.scheduler.v1 import scheduler_pb2
from shoal_scheduler.lane_state import differs


class BoardWatcher:
    """What one watcher has yet to be told: lanes, not events, so that a slow one holds no more than all."""

    def __init__(self, states: Mapping[str, scheduler_pb2.LaneState]) -> None:
        self._states = states
        self._stale: set[str] = set()
        self._wake = asyncio.Event()
        self._ended = False

    def mark(self, tokens: Iterable[str] = ()) -> None:
        """These lanes have changed, or the number of watchers has."""
        self._stale.update(tokens)
        self._wake.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._wake.set()

    async def next(self) -> tuple[list[scheduler_pb2.LaneState], list[str]] | None:
        """Waits for changes: new or changed states, and tokens of lanes that are gone; None at the end.

        Both are empty when only the number of watchers changed.
        """
        await self._wake.wait()
        self._wake.clear()
        if self._ended:
            return None
        tokens, self._stale = sorted(self._stale), set()
        changed = [self._states[token] for token in tokens if token in self._states]
        return changed, [token for token in tokens if token not in self._states]


class LaneBoard:
    """States as they were last told, and who watches them."""

    def __init__(self) -> None:
        self.states: dict[str, scheduler_pb2.LaneState] = {}
        self._watchers: set[BoardWatcher] = set()

    def show(self, states: Mapping[str, scheduler_pb2.LaneState]) -> None:
        """Tells watchers what differs from what they were told."""
        changed = {
            token for token, state in states.items() if token not in self.states or differs(self.states[token], state)
        }
        gone = self.states.keys() - states.keys()
        for token in changed:
            self.states[token] = states[token]
        for token in gone:
            del self.states[token]
        if changed or gone:
            for watcher in self._watchers:
                watcher.mark(changed | gone)

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return len(self._watchers)

    @contextlib.contextmanager
    def joined(self) -> Iterator[BoardWatcher]:
        """A watcher that is told of every change while the block runs; the others are told of it and of its end."""
        watcher = BoardWatcher(self.states)
        self._tell_number()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self._tell_number()

    def _tell_number(self) -> None:
        for watcher in self._watchers:
            watcher.mark()

    def close(self) -> None:
        """Ends every watcher."""
        for watcher in self._watchers:
            watcher.end()
