"""The scheduler's front desk: open while this replica holds the lease, it seats workers and shows lanes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator

from shoal_common import errors
from shoal_scheduler.fleet import Fleet, Wanted
from shoal_scheduler.lane_board import LaneBoard
from shoal_scheduler.seat import Seat

SHOW_PERIOD_S = 0.1
"""Changes are shown at most this often; nothing runs while nothing changes."""
EXPIRE_PERIOD_S = 1.0
SETTLE_S = 1.5
"""A worker's channel reconnects within a second, and it reports at once."""


class Desk:
    """Owns the fleet, its seats and the lane board."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._opened_s = 0.0
        self._changed = asyncio.Event()
        self._seats: set[Seat] = set()
        self.fleet = fleet
        self.board = LaneBoard()
        self.is_open = False

    def want(self, models: Iterable[Wanted]) -> None:
        """The registry's models have changed: every worker may have a new plan."""
        self.fleet.want(models)
        self._changed.set()
        self._wake_seats()

    def open(self) -> None:
        """This replica holds the lease: what the fleet says counts."""
        self.is_open = True
        self._opened_s = self._clock()
        self.board.show(self.fleet.lane_states())

    def close(self) -> None:
        """It does not, or the process stops: streams end, so that workers and gateways go elsewhere."""
        self.is_open = False
        for seat in self._seats:
            seat.end(closed())
        self.board.close()

    async def settled(self) -> None:
        """Returns once workers have had the time to report: lanes seem absent in a scheduler that just started.

        Raises:
            CallError: UNAVAILABLE while the desk is closed.
        """
        self.check_open()
        await asyncio.sleep(max(0.0, self._opened_s + SETTLE_S - self._clock()))
        self.check_open()

    def check_open(self) -> None:
        """Raises CallError (UNAVAILABLE) while the desk is closed."""
        if not self.is_open:
            raise closed()

    @contextlib.contextmanager
    def seated(self) -> Iterator[Seat]:
        """A seat for one worker's stream."""
        seat = Seat(self.fleet, self._changed.set)
        self._seats.add(seat)
        try:
            yield seat
        finally:
            self._seats.discard(seat)
            seat.leave()

    async def show_changes(self) -> None:
        """Shows lane states, and tells workers of idle ones, when something changed, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.board.show(self.fleet.lane_states())
            if self.fleet.find_idle():
                self._wake_seats()
            await asyncio.sleep(SHOW_PERIOD_S)

    async def expire_silent(self) -> None:
        """Drops workers that are not heard any more, for ever."""
        while True:
            await asyncio.sleep(EXPIRE_PERIOD_S)
            if self.fleet.expire():
                self._changed.set()

    def _wake_seats(self) -> None:
        for seat in self._seats:
            seat.wake()


def closed() -> errors.CallError:
    """What is answered while another replica is the scheduler."""
    return errors.unavailable("another scheduler holds the lease", 1.0, "NOT_LEADER")
