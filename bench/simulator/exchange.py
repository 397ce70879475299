"""A machine's exchange: who owns which unit, and who should. The rules of the Rust one, over plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.simulator.matching import Taker, heir, soonest

Grants = dict[int, list[tuple[str, int]]]
"""By new owner, in the order in which they should run: units, each with its former owner."""


@dataclass(slots=True)
class _Entry:
    owner: int
    cost_ms: float = 0.0
    is_tokenized: bool = False
    in_batch: bool = False
    starts_at_s: float | None = None
    """While it is on offer: when its owner would start it."""


@dataclass(slots=True)
class _Member:
    free_at_s: float = float("inf")
    room_ms: float = 0.0
    grants: int = 0
    """Grants sent to it so far,"""
    unseen: list[tuple[int, float]] = field(default_factory=list)
    """and those that its standing does not count in yet: number and milliseconds."""


class Exchange:
    """A unit has one owner at any time, or is an orphan that waits for whoever comes."""

    def __init__(self) -> None:
        self._units: dict[str, _Entry] = {}
        self._members: dict[int, _Member] = {}
        self._offers: dict[int, list[str]] = {}
        self._may_have_orphans = False

    def owner(self, unit: str) -> int | None:
        """Whose a unit is, its former owner's while it is an orphan; None when it is not here."""
        entry = self._units.get(unit)
        return entry.owner if entry else None

    def attached(self, worker: int, now_s: float) -> Grants:
        """A worker came, or came back: it is granted what is its own still, and what nobody else could take."""
        self._members[worker] = _Member()
        own = [(unit, entry, worker) for unit, entry in self._units.items() if entry.owner == worker]
        return self._hand_over([move for move in own if move[1].is_tokenized]) | self._settle(now_s)

    def gone(self, worker: int, now_s: float) -> Grants:
        """A worker's stream ended: its units go to siblings, out of batches too."""
        self._members.pop(worker, None)
        self._offers.pop(worker, None)
        self._may_have_orphans = True
        for entry in self._units.values():
            if entry.owner == worker:
                entry.in_batch, entry.starts_at_s = False, None
        return self._settle(now_s)

    def admit(self, worker: int, unit: str) -> int:
        """Takes a unit in. Returns who owns it: an orphan goes to whoever is handed it."""
        entry = self._units.get(unit)
        if entry is None:
            entry = self._units[unit] = _Entry(worker)
        elif entry.owner not in self._members:
            entry.owner = worker
        return entry.owner

    def tokenized(self, units: Iterable[str], now_s: float) -> Grants:
        """From now on they can change hands."""
        for unit in units:
            if (entry := self._units.get(unit)) is not None:
                entry.is_tokenized = True
        return self._settle(now_s) if self._may_have_orphans else {}

    def claim(self, worker: int, units: Sequence[str]) -> list[str]:
        """Marks units as being computed: all of them, or none. Returns those that are not the worker's."""
        entries = [(unit, self._units.get(unit)) for unit in units]
        if strange := [unit for unit, entry in entries if entry is None or entry.owner != worker or entry.in_batch]:
            return strange
        for _, entry in entries:
            if entry is not None:
                entry.in_batch, entry.starts_at_s = True, None
        return []

    def forget(self, worker: int, units: Iterable[str]) -> list[str]:
        """Units are computed, released, or returned. Returns those that were the worker's."""
        mine = [unit for unit in units if self.owner(unit) == worker]
        for unit in mine:
            del self._units[unit]
        return mine

    def post(self, worker: int, free_in_ms: float, room_ms: float, grants_seen: int, now_s: float) -> Grants:
        """How a worker stands: a claim on what is offered, now and later."""
        member = self._members.get(worker)
        if member is None:
            return {}
        member.free_at_s = now_s + free_in_ms / 1e3
        member.room_ms = room_ms
        member.unseen = [(number, cost_ms) for number, cost_ms in member.unseen if number > grants_seen]
        return self._settle(now_s)

    def offer(self, worker: int, offered: Sequence[tuple[str, float, float]], now_s: float) -> Grants:
        """A worker offers units, with what each costs and in how many milliseconds it would start."""
        for unit in self._offers.pop(worker, ()):
            if self.owner(unit) == worker:
                self._units[unit].starts_at_s = None
        standing = self._offers[worker] = []
        for unit, cost_ms, starts_in_ms in offered:
            entry = self._units.get(unit)
            if entry is not None and entry.owner == worker and not entry.in_batch:
                entry.cost_ms, entry.starts_at_s = cost_ms, now_s + starts_in_ms / 1e3
                standing.append(unit)
        return self._settle(now_s)

    def _settle(self, now_s: float) -> Grants:
        """Hands over whatever should change hands by now."""
        takers = [self._taker(worker, member, now_s) for worker, member in self._members.items()]
        moves = self._adrift(takers) if self._may_have_orphans else []
        if any(taker.room_ms > 0 for taker in takers):
            moves += self._matched(takers, now_s)
        return self._hand_over(moves)

    def _adrift(self, takers: list[Taker]) -> list[tuple[str, _Entry, int]]:
        moves = []
        orphans = [(unit, entry) for unit, entry in self._units.items() if entry.owner not in self._members]
        for unit, entry in orphans:
            if entry.is_tokenized and (taker := heir(takers, entry.owner)) is not None:
                taker.take(entry.cost_ms)
                moves.append((unit, entry, taker.worker))
        self._may_have_orphans = len(moves) < len(orphans)
        return moves

    def _matched(self, takers: list[Taker], now_s: float) -> list[tuple[str, _Entry, int]]:
        offered = [
            ((entry.starts_at_s - now_s) * 1e3, unit, entry)
            for owner, units in self._offers.items()
            for unit in units
            if (entry := self._units.get(unit)) and entry.owner == owner and entry.starts_at_s is not None
        ]
        moves = []
        for starts_in_ms, unit, entry in sorted(offered, key=lambda one: -one[0]):
            if (taker := soonest(takers, entry.owner, entry.cost_ms, starts_in_ms)) is not None:
                taker.take(entry.cost_ms)
                moves.append((unit, entry, taker.worker))
        return moves[::-1]

    def _hand_over(self, moves: list[tuple[str, _Entry, int]]) -> Grants:
        grants: Grants = {}
        for unit, entry, worker in moves:
            grants.setdefault(worker, []).append((unit, entry.owner))
            entry.owner, entry.starts_at_s = worker, None
        for worker, units in grants.items():
            member = self._members[worker]
            member.grants += 1
            member.unseen.append((member.grants, sum(self._units[unit].cost_ms for unit, _ in units)))
        return grants

    def _taker(self, worker: int, member: _Member, now_s: float) -> Taker:
        unseen_ms = sum(cost_ms for _, cost_ms in member.unseen)
        free_in_ms = max(0.0, (member.free_at_s - now_s) * 1e3) + unseen_ms
        return Taker(worker, free_in_ms, member.room_ms - unseen_ms)
