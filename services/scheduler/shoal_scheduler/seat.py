"""A worker's seat: one Report stream, from its first report to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from shoal.scheduler.v1 import scheduler_pb2
from shoal_common import errors
from shoal_scheduler.fleet import Fleet
from shoal_scheduler.report_check import violations


@dataclass(frozen=True)
class Plan:
    """What a worker is to hold, and for which of its lanes others have nothing to do.

    The revision counts up on its stream with every change.
    """

    revision: int
    digests: tuple[str, ...]
    idle_lanes: tuple[str, ...]


class Seat:
    """Takes a worker's reports and gives its plans. Owned by the stream's handler."""

    def __init__(self, fleet: Fleet, on_change: Callable[[], None]) -> None:
        self._fleet = fleet
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._worker = ""
        self._ended = False
        self._error: errors.CallError | None = None

    def wake(self) -> None:
        """The plan may have changed."""
        self._wake.set()

    def end(self, error: errors.CallError | None = None) -> None:
        """Ends the plans: in order, or with an error."""
        self._ended, self._error = True, self._error or error
        self._wake.set()

    def take(self, report: scheduler_pb2.ReportRequest) -> None:
        """One report.

        Raises:
            CallError: INVALID_ARGUMENT; it names another worker than before, or values out of range.
        """
        wrong = violations(report)
        if self._worker and report.worker != self._worker:
            wrong.append(("worker", f"was {self._worker!r} on this stream, now {report.worker!r}"))
        if wrong:
            raise errors.invalid_fields(wrong)
        self._worker = report.worker
        self._fleet.observe(self, report)
        self._on_change()
        self._wake.set()

    def leave(self) -> None:
        """The stream is over: its worker is gone at once."""
        if self._worker:
            self._fleet.gone(self, self._worker)
            self._on_change()

    async def plans(self) -> AsyncIterator[Plan]:
        """Each new plan, the first as soon as the worker and the models are known.

        Raises:
            CallError: what the seat was ended with.
        """
        sent: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        revision = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._ended:
                break
            digests = self._fleet.plan(self._worker)
            if digests is None:
                continue
            plan = (digests, self._fleet.idle_lanes(self._worker))
            if plan != sent:
                sent, revision = plan, revision + 1
                yield Plan(revision, *plan)
        if self._error is not None:
            raise self._error
