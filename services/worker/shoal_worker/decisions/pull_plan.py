"""Which pulls are out, and what is known of the lanes: one-message pulls that wait while the device is idle, pulls
that drain a lane while it is busy, and peeks that take nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from shoal_common.lanes import CLASSES
from shoal_worker.decisions import lane_choice
from shoal_worker.decisions.drain_notes import DrainNote, Loudness
from shoal_worker.decisions.lane_guess import Guess

WAIT_S = 0.25
"""How long a waiting pull waits at most: it cannot be cancelled, so it may bring a message to a device that is busy
by then. The idler the device has been, the longer: a device that is idle for a moment only asks for that moment."""
WAIT_SPREAD = 0.25
"""Waiting pulls are served in the order in which they came: were those of a worker renewed together, it would be
first in all lanes, and be given work of each."""
WAITS_PER_S = 100
"""About so many waiting pulls a second while idle, as long as their lanes are few: longest waits are `WAIT_S`."""
FEW_WAIT_S = 0.1
"""How long they wait at most where that allows them less. Each that ends costs the broker and this process half a
millisecond, and a device with a stream to spare has some out while it computes."""
IDLE_WEIGHT = 0.3
"""Of one idle spell in their mean."""
GRACE_S = 0.5
"""An answer that is later than this is lost, for instance with a broker that was restarted."""
DRY_S = 0.01
"""A lane that was empty is asked again after so long: a busy device loses no more than that."""
PAUSE_S = 0.25
"""A lane whose consumers cannot be had is left alone for so long."""
PEEKS = 8
"""Lanes that are peeked at a time: 20 µs of the broker's time each, 30 of this process's."""


class Kind(Enum):
    """What a pull asks for."""

    WAIT = "one message, when it comes"
    DRAIN = "all that is there, up to a number"
    PEEK = "whether anything is there"


class Order(NamedTuple):
    """A pull to send."""

    pull_id: int
    lane: str
    work_class: str
    batch: int
    kind: Kind
    expires_s: float = 0.0
    """Of a waiting pull."""

    @property
    def waits(self) -> bool:
        """Whether it waits for a message to come."""
        return self.kind is Kind.WAIT


@dataclass(slots=True)
class _Out:
    pull_id: int
    lost_at_s: float
    left: int = 1
    taken: int = 0
    oldest_s: float = float("inf")
    """When the oldest of the messages that it brought came to the broker."""


@dataclass(slots=True)
class _Source:
    """A lane's class."""

    lane: str
    work_class: str
    guess: Guess = field(default_factory=Guess)
    waiting: _Out | None = None
    draining: _Out | None = None
    peeking: _Out | None = None
    asked_s: float = float("-inf")
    """When something was last learnt of it by a pull."""
    paused_until_s: float = float("-inf")
    peek_from_s: float = float("-inf")
    """Not peeked at before: the last peek could not tell."""
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
        self._loudness = Loudness(rng)
        self._notes: list[DrainNote] = []
        self._sources: dict[tuple[str, str], _Source] = {}
        self._out: dict[int, _Source] = {}
        self._ids = itertools.count()
        self._drains = 0
        self._idle_from_s: float | None = None
        self._idle_s = WAIT_S
        """Mean length of idle spells."""

    def serve(self, tokens: Iterable[str]) -> None:
        """Names the lanes to pull; those that stay keep their state."""
        keys = [(token, work_class) for token in tokens for work_class in CLASSES.values()]
        self._sources = {key: self._sources.get(key) or _Source(*key) for key in keys}
        self._drains = sum(source.draining is not None for source in self._sources.values())

    @property
    def is_draining(self) -> bool:
        """Whether a drain has not ended: its messages are on their way."""
        return self._drains > 0

    def wait(self, now_s: float) -> list[Order]:
        """A waiting pull for every lane and class that has none out and is not being drained."""
        if self._idle_from_s is None:
            self._idle_from_s = now_s
        # A spell that has lasted for some time is taken to last as long again, whatever the others were.
        idle_s = max(self._idle_s, now_s - self._idle_from_s)
        expires_s = min(WAIT_S, max(idle_s, FEW_WAIT_S, len(self._sources) / WAITS_PER_S))
        orders = []
        for source in self._sources.values():
            if source.waiting is None and source.draining is None and now_s >= source.paused_until_s:
                source.waiting = self._send(source, now_s + expires_s + GRACE_S)
                pull_id, own_s = source.waiting.pull_id, expires_s * self._rng.uniform(WAIT_SPREAD, 1.0)
                orders.append(Order(pull_id, source.lane, source.work_class, 1, Kind.WAIT, own_s))
        return orders

    def next_lane(self, work_class: str, due_s: float, now_s: float) -> str | None:
        """The lane that is to be drained next, of those in which work is believed to wait."""
        lanes = {source.lane: source.guess for source in self._of(work_class, now_s) if source.waiting is None}
        return lane_choice.best(lanes, self._loudness.news(now_s), due_s, now_s, self._rng)

    def unseen_lane(self, work_class: str, now_s: float) -> str | None:
        """The lane of which nothing was learnt for longest; None when all were asked a moment ago. Ties at random."""
        sources = [
            source
            for source in self._of(work_class, now_s)
            if source.waiting is None and now_s - source.asked_s >= DRY_S
        ]
        return min(sources, key=lambda source: (source.asked_s, self._rng.random())).lane if sources else None

    def may_hold(self, lane: str, work_class: str, now_s: float) -> bool:
        """Whether it is worth while to drain a lane."""
        source = self._sources.get((lane, work_class))
        return (
            source is not None
            and self._is_open(source, now_s)
            and (source.guess.fill(now_s) >= 1 or now_s - source.asked_s >= DRY_S)
        )

    def drain(self, lane: str, work_class: str, batch: int, now_s: float) -> Order:
        """A pull of all that a lane has, at most `batch` messages."""
        source = self._sources[lane, work_class]
        source.draining = self._send(source, now_s + GRACE_S, batch)
        self._drains += 1
        source.guess.claimed(batch, now_s)
        return Order(source.draining.pull_id, lane, work_class, batch, Kind.DRAIN)

    def peek(self, unseen_s: Mapping[str, float], now_s: float) -> list[Order]:
        """Peeks at lanes of which nothing was learnt for so long, by class; longest unseen first, ties at random."""
        unseen = [
            source
            for source in self._sources.values()
            if source.peeking is None
            and source.waiting is None
            and self._is_open(source, now_s)
            and now_s - source.asked_s >= unseen_s[source.work_class]
            and now_s >= source.peek_from_s
            and source.guess.fill(now_s) < 1
        ]
        unseen.sort(key=lambda source: (source.asked_s, self._rng.random()))
        orders = []
        for source in unseen[:PEEKS]:
            source.peeking = self._send(source, now_s + GRACE_S)
            orders.append(Order(source.peeking.pull_id, source.lane, source.work_class, 1, Kind.PEEK))
        return orders

    def sibling_drained(self, note: DrainNote, now_s: float) -> None:
        """A sibling told of its drain."""
        self._loudness.heard(now_s)
        source = self._sources.get((note.lane, note.work_class))
        if source is not None:
            source.guess.drained(note.taken, note.left, now_s - note.oldest_s, now_s - note.newest_s, now_s)

    def take_notes(self) -> list[DrainNote]:
        """What is to be told to siblings."""
        notes, self._notes = self._notes, []
        return notes

    def delivered(
        self, lane: str, work_class: str, waits: bool, pending: int, now_s: float, waited_s: float = 0.0
    ) -> None:
        """A message came on a pull of a kind; it had waited for so long in the queue."""
        source = self._sources.get((lane, work_class))
        if source is None:
            return
        source.pending = pending
        source.empty_from_s = float("inf")
        source.asked_s = now_s
        self._idle_ended(now_s)
        if waits:
            self._forget(source.waiting)
            source.waiting = None
            if source.draining is None:
                source.guess.drained(1, pending, now_s, now_s - waited_s, now_s)
        elif (drain := source.draining) is not None:
            drain.left -= 1
            drain.taken += 1
            drain.oldest_s = min(drain.oldest_s, now_s - waited_s)
            drain.lost_at_s = now_s + GRACE_S
            source.guess.left, source.guess.since_s = pending, now_s - waited_s if pending else now_s
            if drain.left <= 0:  # A filled pull sends no end status.
                self._drained(source, drain, now_s - waited_s, now_s)

    def ended(self, pull_id: int, *, empty: bool, now_s: float) -> str | None:
        """A pull ended by a status; unless that says `empty`, the lane is paused. Returns its lane, if known."""
        source = self._out.pop(pull_id, None)
        if source is None or self._sources.get((source.lane, source.work_class)) is not source:
            return None
        source.asked_s = now_s
        if source.draining is not None and source.draining.pull_id == pull_id:
            self._drained(source, source.draining, now_s, now_s)
        elif source.waiting is not None and source.waiting.pull_id == pull_id:
            source.waiting = None
        else:
            source.peeking = None
        source.pending = 0
        source.guess.emptied(now_s)
        source.empty_from_s, source.empty_to_s = min(source.empty_from_s, now_s), now_s
        if not empty:
            source.paused_until_s = now_s + PAUSE_S
        return source.lane

    def peeked(self, pull_id: int, now_s: float, *, found: bool) -> None:
        """A peek found that work waits, or could not tell."""
        source = self._out.pop(pull_id, None)
        if source is None:
            return
        source.peeking = None
        if found:
            source.asked_s = now_s
            source.empty_from_s = float("inf")
            source.guess.seen(now_s)
        else:
            source.peek_from_s = now_s + DRY_S

    def resume(self, lane: str) -> None:
        """A lane's consumers are there again."""
        for (token, _), source in self._sources.items():
            if token == lane:
                source.paused_until_s = source.asked_s = float("-inf")

    def forget_late(self, now_s: float) -> None:
        """Gives up pulls that should have been answered long ago."""
        for source in self._sources.values():
            for out in (source.waiting, source.draining, source.peeking):
                if out is not None and now_s >= out.lost_at_s:
                    self._give_up(source, out)

    def forget_all(self) -> None:
        """The connection was lost, and every pull with it."""
        for source in self._sources.values():
            for out in (source.waiting, source.draining, source.peeking):
                if out is not None:
                    self._give_up(source, out)
            source.asked_s = float("-inf")
            source.empty_from_s = float("inf")

    def empty_s(self, lane: str, after_s: float) -> float:
        """For how long, of the time from `after_s` on, pulls of a lane's classes are known to have brought nothing."""
        sources = [self._sources.get((lane, work_class)) for work_class in CLASSES.values()]
        return min(
            source.empty_to_s - max(source.empty_from_s, after_s) if source else float("-inf") for source in sources
        )

    def pending(self, lane: str) -> int:
        """Messages that waited in a lane's classes when they last delivered."""
        return sum(
            source.pending or 0
            for work_class in CLASSES.values()
            if (source := self._sources.get((lane, work_class))) is not None
        )

    def _of(self, work_class: str, now_s: float) -> list[_Source]:
        return [
            source
            for source in self._sources.values()
            if source.work_class == work_class and self._is_open(source, now_s)
        ]

    def _is_open(self, source: _Source, now_s: float) -> bool:
        return source.draining is None and now_s >= source.paused_until_s

    def _send(self, source: _Source, lost_at_s: float, batch: int = 1) -> _Out:
        out = _Out(next(self._ids), lost_at_s, batch)
        self._out[out.pull_id] = source
        return out

    def _forget(self, out: _Out | None) -> None:
        if out is not None:
            self._out.pop(out.pull_id, None)

    def _give_up(self, source: _Source, out: _Out) -> None:
        self._forget(out)
        if source.draining is out:
            source.draining = None
            self._drains -= 1
        elif source.waiting is out:
            source.waiting = None
        else:
            source.peeking = None

    def _drained(self, source: _Source, drain: _Out, newest_s: float, now_s: float) -> None:
        self._forget(drain)
        source.draining = None
        self._drains -= 1
        if drain.taken:
            left = source.pending or 0
            source.guess.drained(drain.taken, left, drain.oldest_s, newest_s, now_s)
            if self._loudness.tells():
                oldest_s = now_s - drain.oldest_s
                note = DrainNote(source.lane, source.work_class, drain.taken, left, oldest_s, now_s - newest_s)
                self._notes.append(note)

    def _idle_ended(self, now_s: float) -> None:
        if self._idle_from_s is not None:
            self._idle_s += IDLE_WEIGHT * (min(WAIT_S, now_s - self._idle_from_s) - self._idle_s)
            self._idle_from_s = None
