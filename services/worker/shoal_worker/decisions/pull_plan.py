"""Which pulls are out, and which comes next: one-message pulls that wait while the device is idle, and
pulls that drain a lane while it is busy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shoal_common.lanes import CLASSES

WAIT_S = 0.25
"""How long a waiting pull waits: it cannot be cancelled, so it may take a message that a sibling wanted."""
GRACE_S = 0.5
"""An answer that is later than this is lost, for instance with a broker that was restarted."""
DRY_S = 0.01
"""A lane that was empty is asked again after so long: a busy device loses no more than that."""
UNSEEN_S = 0.25
"""A lane that was empty so long ago counts as one with work: else a saturated one would keep all others waiting."""
PAUSE_S = 0.25
"""A lane whose consumers cannot be had is left alone for so long."""


class Order(NamedTuple):
    """A pull to send."""

    pull_id: int
    lane: str
    work_class: str
    batch: int
    waits: bool


@dataclass(slots=True)
class _Out:
    pull_id: int
    lost_at_s: float
    left: int


@dataclass(slots=True)
class _Source:
    """A lane's class."""

    lane: str
    work_class: str
    waiting: _Out | None = None
    draining: _Out | None = None
    dry_at_s: float = float("-inf")
    paused_until_s: float = float("-inf")
    pending: int | None = None
    """Messages left when it last delivered; None before."""
    empty_from_s: float = float("inf")
    """The first pull since it last delivered that brought nothing."""
    empty_to_s: float = float("-inf")
    """The last one."""


class PullPlan:
    """The state of every pull. Times are seconds on the loop's monotonic clock."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sources: dict[tuple[str, str], _Source] = {}
        self._ids = itertools.count()

    def serve(self, tokens: Iterable[str]) -> None:
        """Names the lanes to pull; those that stay keep their state."""
        keys = [(token, work_class) for token in tokens for work_class in CLASSES.values()]
        self._sources = {key: self._sources.get(key) or _Source(*key) for key in keys}

    @property
    def is_draining(self) -> bool:
        """Whether a drain has not ended: its messages are on their way."""
        return any(source.draining for source in self._sources.values())

    def wait(self, now_s: float) -> list[Order]:
        """A waiting pull for every lane and class that has no pull out."""
        orders = []
        for source in self._sources.values():
            if source.waiting is None and source.draining is None and now_s >= source.paused_until_s:
                source.waiting = _Out(next(self._ids), now_s + WAIT_S + GRACE_S, 1)
                orders.append(Order(source.waiting.pull_id, source.lane, source.work_class, 1, True))
        return orders

    def next_lane(self, work_class: str, now_s: float, *, only_known: bool = False) -> str | None:
        """The lane to drain next: one that said work waits or that was not asked lately; ties at random.

        None when all were empty a moment ago; with `only_known`, when none said that work waits.
        """
        sources = [
            source
            for source in self._sources.values()
            if source.work_class == work_class
            and source.draining is None
            and now_s >= source.paused_until_s
            and now_s - source.dry_at_s >= DRY_S
            and (source.pending or not only_known)
        ]
        if not sources:
            return None

        def is_empty(source: _Source) -> bool:
            return not source.pending and now_s - source.dry_at_s < UNSEEN_S

        return min(sources, key=lambda source: (is_empty(source), self._rng.random())).lane

    def drain(self, lane: str, work_class: str, batch: int, now_s: float) -> Order:
        """A pull of all that a lane has, at most `batch` messages."""
        source = self._sources[lane, work_class]
        source.draining = _Out(next(self._ids), now_s + GRACE_S, batch)
        return Order(source.draining.pull_id, lane, work_class, batch, False)

    def delivered(self, lane: str, work_class: str, waits: bool, pending: int, now_s: float) -> None:
        """A message came on a pull of a kind."""
        source = self._sources.get((lane, work_class))
        if source is None:
            return
        source.pending = pending
        source.empty_from_s = float("inf")
        source.dry_at_s = float("-inf") if pending else now_s
        if waits:
            source.waiting = None
        elif source.draining is not None:
            source.draining.left -= 1
            source.draining.lost_at_s = now_s + GRACE_S
            if source.draining.left <= 0:  # A filled pull sends no end status.
                source.draining = None

    def ended(self, pull_id: int, *, empty: bool, now_s: float) -> str | None:
        """A pull ended by a status; unless that says `empty`, the lane is paused. Returns its lane, if known."""
        for source in self._sources.values():
            if source.waiting is not None and source.waiting.pull_id == pull_id:
                source.waiting = None
            elif source.draining is not None and source.draining.pull_id == pull_id:
                source.draining = None
                source.dry_at_s = now_s
            else:
                continue
            source.pending = 0
            source.empty_from_s, source.empty_to_s = min(source.empty_from_s, now_s), now_s
            if not empty:
                source.paused_until_s = now_s + PAUSE_S
            return source.lane
        return None

    def resume(self, lane: str) -> None:
        """A lane's consumers are there again."""
        for (token, _), source in self._sources.items():
            if token == lane:
                source.paused_until_s = source.dry_at_s = float("-inf")

    def forget_late(self, now_s: float) -> None:
        """Gives up pulls that should have been answered long ago."""
        for source in self._sources.values():
            if source.waiting is not None and now_s >= source.waiting.lost_at_s:
                source.waiting = None
            if source.draining is not None and now_s >= source.draining.lost_at_s:
                source.draining = None

    def forget_all(self) -> None:
        """The connection was lost, and every pull with it."""
        for source in self._sources.values():
            source.waiting = source.draining = None
            source.dry_at_s = float("-inf")
            source.empty_from_s = float("inf")

    def empty_s(self, lane: str, after_s: float) -> float:
        """For how long, of the time from `after_s` on, pulls of a lane's classes are known to have brought nothing."""
        sources = [self._sources.get((lane, work_class)) for work_class in CLASSES.values()]
        return min(
            source.empty_to_s - max(source.empty_from_s, after_s) if source else float("-inf") for source in sources
        )

    def pending(self, lane: str) -> int:
        """Messages that wait in a lane's classes, as far as it is known."""
        return sum(
            source.pending or 0
            for work_class in CLASSES.values()
            if (source := self._sources.get((lane, work_class))) is not None
        )
