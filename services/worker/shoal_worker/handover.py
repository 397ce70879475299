"""Units that change hands on this machine: granted to this worker, or taken by a sibling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import limits, logs
from shoal_common.broker_clock import BrokerClock
from shoal_worker import intake, metrics
from shoal_worker.acks import Acks
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.held import Held

log = logs.get("handover")
KEPT = (Stage.ANSWERED, Stage.RETURNING)
"""Stages of a unit that is done with here, whatever the sidecar still has of it."""


class Handover:
    """A grant makes a unit this worker's: its in-progress acks, its answer and its ack. No copy travels."""

    def __init__(
        self,
        worker: str,
        clock: BrokerClock,
        held: Held,
        dispatch: Dispatch,
        acks: Acks,
        release: Callable[[list[str]], None],
        let_go: Callable[[list[HeldUnit], str], None],
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._held = held
        self._dispatch = dispatch
        self._acks = acks
        self._release = release
        self._let_go = let_go

    def granted(self, granted: sidecar_pb2.Granted) -> list[HeldUnit]:
        """Takes units into hand; returns those that are to be run."""
        now_s, broker_s = time.monotonic(), self._clock.now_s()
        taken, released = [], []
        for grant in granted.units:
            unit = intake.granted(grant, now_s, broker_s)
            if unit is None:
                log.error("a grant cannot be read", sender=getattr(grant, "from"))
                continue
            known = self._held.get(unit.id)
            if known is not None:
                self._known(known, unit, released)
            elif reason := intake.unwanted(unit, self._held, now_s):
                released.append(unit.id)
                self._let_go([unit], reason)
            else:
                self._held.add(unit)
                taken.append(unit)
                if unit.pulled_s < now_s - limits.IN_PROGRESS_PERIOD_S:
                    self._acks.in_progress(unit)  # Nobody knows when its last owner said so.
                if getattr(grant, "from") != self._worker:
                    metrics.put_backs.add(1, kind="from_sibling")
        if released:
            self._release(released)
        return taken

    def taken(self, taken: sidecar_pb2.Taken) -> None:
        """Units are a sibling's: it answers and acks them."""
        if left := self._forget(taken.unit_ids):
            metrics.put_backs.add(left, kind="to_sibling")

    def not_owned(self, not_owned: sidecar_pb2.NotOwned) -> None:
        """Units of an offer or a return that are not this worker's: whose they are, answers them."""
        ids = [unit_id for unit_id in not_owned.unit_ids if (unit := self._held.get(unit_id)) and _waits(unit)]
        if ids:
            log.warning("units were not this worker's any more", units=len(ids), first=ids[0])
            self._forget(ids)

    def _known(self, known: HeldUnit, unit: HeldUnit, released: list[str]) -> None:
        """A grant of a unit in hand: it was delivered to a sibling as well, which gave it away."""
        if unit.deliveries > known.deliveries:
            known.ack_subject = unit.ack_subject
        if known.stage in KEPT:
            released.append(unit.id)

    def _forget(self, unit_ids: Iterable[str]) -> int:
        forgotten = 0
        for unit_id in unit_ids:
            unit = self._held.get(unit_id)
            if unit is not None and unit.stage is not Stage.ANSWERED:
                self._dispatch.taken(unit)
                self._held.remove(unit)
                forgotten += 1
        return forgotten


def _waits(unit: HeldUnit) -> bool:
    return unit.stage in (Stage.READY, Stage.RETURNING)
