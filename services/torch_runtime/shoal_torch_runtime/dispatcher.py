"""Which thread of a device runs which job: one batch on all cores, or several on one core each. Knows no threads.

On a CPU two forwards of one thread each do more together than one forward of two threads, but a batch that is alone
is sooner done on all cores. So a device has one *wide* stream and, where it runs several batches at once, *narrow*
ones; wide and narrow never run together, since they would share cores. Jobs start in the order of arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Generic, TypeVar

WIDE = 0
"""The stream that runs on all cores. Narrow streams count from 1."""

J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class Start(Generic[J]):
    """A job is to be started on a stream."""

    stream: int
    job: J


class Dispatcher(Generic[J]):
    """Jobs that wait, and streams that run. The caller tells what arrives and ends, and starts what it is told."""

    def __init__(self, streams: int) -> None:
        """Takes the number of batches that may run at once; one means there are no narrow streams."""
        self._narrow = range(1, streams + 1) if streams > 1 else range(0)
        self._running: set[int] = set()
        self._waiting: deque[tuple[J, bool]] = deque()

    def add(self, job: J, *, alone: bool = False) -> list[Start[J]]:
        """Adds a job behind the others; `alone` keeps all other streams still while it runs.

        Returns:
            What is to be started now.
        """
        self._waiting.append((job, alone))
        return self._starts()

    def ended(self, stream: int) -> list[Start[J]]:
        """Takes note that a stream's job has ended, and returns what is to be started now."""
        self._running.remove(stream)
        return self._starts()

    def _starts(self) -> list[Start[J]]:
        if WIDE in self._running or not self._waiting:
            return []
        if not self._running and (not self._narrow or self._batches_at_head() < 2):
            return [self._start(WIDE)]
        free = [stream for stream in self._narrow if stream not in self._running]
        return [self._start(stream) for stream in free[: self._batches_at_head()]]

    def _batches_at_head(self) -> int:
        """Batches that wait before the first job that must run alone, counted as far as streams could take them."""
        head = islice(self._waiting, len(self._narrow))
        return sum(1 for _ in takewhile(lambda waiting: not waiting[1], head))

    def _start(self, stream: int) -> Start[J]:
        job, _ = self._waiting.popleft()
        self._running.add(stream)
        return Start(stream, job)
