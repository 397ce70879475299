"""What this worker tells its siblings through the sidecar: how it stands, and which units it would give away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from shoal.sidecar.v1 import sidecar_pb2
from shoal_worker.attach import Attach
from shoal_worker.decisions import put_back
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.put_back import Standing, Surplus
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.held import Held

STATE_PERIOD_S = 0.25
"""A state is posted at least so often: with the timer that sees to it, that is twice a second."""
POST_GAP_S = 0.002
"""Posts are at least so far apart: a message costs 0.1 ms, and a burst of changes is one change."""
SHIFT_MS = 2.0
"""Times that moved by less tell nothing new."""
SHIFT_SHARE = 0.1
"""And of what is far ahead, or much, by less than this share."""


class Exchange:
    """Posts what changed after every change; with nobody to hear it, nothing is computed or sent."""

    def __init__(
        self,
        attach: Attach,
        dispatch: Dispatch,
        held: Held,
        residents: Callable[[float], list[sidecar_pb2.Resident]],
        to_queue: Callable[[list[HeldUnit]], None],
    ) -> None:
        self._attach = attach
        self._dispatch = dispatch
        self._held = held
        self._residents = residents
        self._to_queue = to_queue
        self._timer: asyncio.TimerHandle | None = None
        self._posted_s = float("-inf")
        self._is_leaving = False
        self._over: set[HeldUnit] = set()
        self.idle_lanes: frozenset[str] = frozenset()
        """Tokens of lanes for which a worker on another machine has nothing to do."""
        self.reset()

    def reset(self) -> None:
        """A new stream to the sidecar, or none: nobody was told anything."""
        self._siblings = 0
        self._grants_seen = 0
        self._state: sidecar_pb2.State | None = None
        self._state_s = float("-inf")
        self._offered: dict[HeldUnit, float] = {}

    def siblings(self, workers: int) -> None:
        """So many others are on this machine. Those that came know nothing of this worker yet."""
        self._siblings = workers
        self._state, self._state_s = None, float("-inf")
        self._offered = {}

    def granted(self, number: int) -> None:
        """A grant was read and counted in."""
        self._grants_seen = number

    def models_changed(self) -> None:
        """What can be run here changed."""
        self._state_s = float("-inf")

    def leave(self) -> None:
        """This worker stops: it takes nothing more, and all that waits here is for whoever has room."""
        self._is_leaving = True

    def post(self, now_s: float) -> None:
        """Says what changed, now or, if something was said just before, a moment later."""
        if self._timer is not None or not (self._siblings or self.idle_lanes) or not self._attach.is_up:
            return
        if (wait_s := self._posted_s + POST_GAP_S - now_s) > 0:
            self._post_in(wait_s)
            return
        surplus = self._surplus(now_s)
        if self._siblings:
            self._post_state(now_s)
            self._post_offer(surplus, now_s)
        self._note(surplus, now_s)
        if self.idle_lanes:
            self._return(surplus, now_s)

    def _return(self, surplus: Sequence[Surplus], now_s: float) -> None:
        """Puts on the queue what should go there, and sees to it that what is offered since just now is looked at."""
        # A unit that may have brought a worker down stays where its deliveries are counted.
        sound = [over for over in surplus if over.unit.lane in self.idle_lanes and not over.unit.runs_alone]
        if units := put_back.to_queue(sound, self.idle_lanes, self._dispatch.pace, now_s):
            self._to_queue(units)
        if any(over.unit.offered_s == now_s for over in sound):
            self._post_in(put_back.HOP_S)

    def _post_in(self, wait_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._post_late)

    def _post_late(self) -> None:
        self._timer = None
        self.post(time.monotonic())

    def _surplus(self, now_s: float) -> Sequence[Surplus]:
        if not self._is_leaving:
            return self._dispatch.surplus(now_s)
        ready = self._held.at(Stage.READY)
        return [Surplus(unit, unit.cost_ms, max(0.0, unit.deadline_s - now_s) * 1e3) for unit in ready]

    def _standing(self, now_s: float) -> Standing:
        standing = self._dispatch.standing(now_s)
        return Standing(standing.free_in_ms, 0.0) if self._is_leaving else standing

    def _post_state(self, now_s: float) -> None:
        standing = self._standing(now_s)
        if now_s - self._state_s < STATE_PERIOD_S and not self._tells_more(standing, now_s):
            return
        state = sidecar_pb2.State(
            free_in_ms=standing.free_in_ms,
            room_ms=standing.room_ms,
            residents=self._residents(now_s),
            grants_seen=self._grants_seen,
        )
        self._attach.send(sidecar_pb2.AttachRequest(state=state))
        self._state, self._state_s = state, now_s
        self._posted_s = now_s

    def _tells_more(self, standing: Standing, now_s: float) -> bool:
        state = self._state
        return (
            state is None
            or state.grants_seen != self._grants_seen
            or bool(state.room_ms) != bool(standing.room_ms)
            or _moved(state.room_ms, standing.room_ms)
            or _moved(max(0.0, state.free_in_ms - (now_s - self._state_s) * 1e3), standing.free_in_ms)
        )

    def _post_offer(self, surplus: Sequence[Surplus], now_s: float) -> None:
        # A unit that ran, was granted or released has left the offer by itself.
        standing = {unit: start_s for unit, start_s in self._offered.items() if unit.stage is Stage.READY}
        starts_ms = {over.unit: over.starts_in_ms for over in surplus}
        if standing.keys() != starts_ms.keys() or any(
            _moved(max(0.0, (standing[unit] - now_s) * 1e3), start_ms) for unit, start_ms in starts_ms.items()
        ):
            offer = sidecar_pb2.Offer(
                units=[
                    sidecar_pb2.OfferedUnit(unit_id=over.unit.id, cost_ms=over.cost_ms, starts_in_ms=over.starts_in_ms)
                    for over in surplus
                ]
            )
            self._attach.send(sidecar_pb2.AttachRequest(offer=offer))
            standing = {unit: now_s + start_ms / 1e3 for unit, start_ms in starts_ms.items()}
            self._posted_s = now_s
        self._offered = standing

    def _note(self, surplus: Sequence[Surplus], now_s: float) -> None:
        """Notes since when each unit is over."""
        over = {one.unit for one in surplus}
        for unit in self._over - over:
            unit.offered_s = None
        for unit in over - self._over:
            unit.offered_s = now_s
        self._over = over


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > max(SHIFT_MS, SHIFT_SHARE * max(before, after))
