"""Simulated time: events in their order, beside a list of arrivals that is known beforehand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any


class Clock:
    """`now_s` jumps from event to event; events of the same moment run in the order in which they were made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0
        self._stopped = False

    def at(self, time_s: float, event: Callable[..., None], *args: Any) -> None:
        """Runs an event at a moment that is not over."""
        self._made += 1
        heapq.heappush(self._events, (time_s, self._made, event, args))

    def after(self, wait_s: float, event: Callable[..., None], *args: Any) -> None:
        """Runs an event so long from now."""
        self._made += 1
        heapq.heappush(self._events, (self.now_s + wait_s, self._made, event, args))

    def stop(self) -> None:
        """Ends `run` after this event."""
        self._stopped = True

    def run(self, arrivals_s: Sequence[float], arrive: Callable[[int], None], until_s: float) -> None:
        """Runs events, and `arrive(index)` at each of the ascending `arrivals_s`, up to a moment."""
        events, pop = self._events, heapq.heappop
        index, count = 0, len(arrivals_s)
        next_arrival_s = arrivals_s[0] if count else float("inf")
        while not self._stopped:
            event_s = events[0][0] if events else float("inf")
            if next_arrival_s <= event_s:
                if next_arrival_s > until_s:
                    break
                self.now_s = next_arrival_s
                arrive(index)
                index += 1
                next_arrival_s = arrivals_s[index] if index < count else float("inf")
            else:
                if event_s > until_s:
                    break
                self.now_s, _, event, args = pop(events)
                event(*args)
