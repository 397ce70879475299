"""Keeps what the cost models have learnt in a bucket, so that a restarted worker predicts as before."""

from __future__ import annotations

import asyncio
import base64

import nats.errors

from shoal_common import logs
from shoal_common.bucket import Bucket, Conflict
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_worker.decisions.cost import CostState
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.saved_costs import SavedCosts, known
from shoal_worker.settings import WorkerSettings

log = logs.get("cost_store")
BUCKET = "shoal-costs"
KEPT_S = 30 * 24 * 3600.0
"""A worker that has not written for so long is gone."""
READ_S = 5.0
SAVE_PERIOD_S = 10.0
SAVE_S = 1.0
MATERIAL = 0.02
"""A prediction that changed by less is not worth a write."""
FAULTS = (TimeoutError, BrokerTimeout, ApiError, nats.errors.Error)

_Samples = dict[str, tuple[float, ...]]


class CostStore:
    """Reads once, in the background, and writes while it runs: what is served never waits for it."""

    def __init__(self, session: Session, settings: WorkerSettings, dispatch: Dispatch) -> None:
        self._bucket = Bucket(session, BUCKET, ttl_s=KEPT_S, replicas=settings.replicas)
        self._key = key(settings.worker)
        self._settings = settings
        self._dispatch = dispatch
        self._revision: int | None = None
        """Of this worker's value; None while that is unknown."""
        self._former: dict[str, CostState] = {}
        self._samples: _Samples = {}
        """What each model predicted when it was last saved."""

    async def run(self) -> None:
        """Reads what is known, then saves for ever."""
        await self._read()
        while True:
            await asyncio.sleep(SAVE_PERIOD_S)
            await self.save()

    async def save(self) -> None:
        """Writes if a prediction has changed materially; a write that fails is made again the next time."""
        learnt = {digest: cost for digest, cost in self._dispatch.costs.items() if cost.batches}
        samples = {digest: cost.samples() for digest, cost in learnt.items()}
        if not _differ(self._samples, samples):
            return
        # Models of a former life that were not served in this one come first: they are dropped first.
        states = {digest: state for digest, state in self._former.items() if digest not in learnt}
        states |= {digest: cost.state() for digest, cost in learnt.items()}
        value = SavedCosts.of(self._settings, states).model_dump_json().encode()
        try:
            async with asyncio.timeout(SAVE_S):
                if self._revision is None:
                    await self._bucket.ensure()
                    entry = await self._bucket.get(self._key)
                    self._revision = entry.revision if entry else 0
                self._revision = await self._bucket.put(self._key, value, expected=self._revision, timeout_s=SAVE_S)
        except (*FAULTS, Conflict) as error:
            self._revision = None
            log.info("costs are not saved", error=str(error))
            return
        self._samples = samples

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(READ_S):
                await self._bucket.ensure()
                entries = (await self._bucket.read(timeout_s=READ_S)).entries
        except FAULTS as error:
            log.warning("saved costs cannot be read: predictions start from the profiles", error=str(error))
            return
        own, others = None, []
        for name, entry in entries.items():
            saved = SavedCosts.parse(entry.value)
            if saved is None:
                log.warning("saved costs are not readable, and left out", key=name)
            elif name != self._key:
                others.append(saved)
            elif saved.fits(self._settings):
                own = saved
            else:
                log.info("saved costs are of another device, and left out", kind=saved.kind, streams=saved.streams)
        mine = entries.get(self._key)
        self._revision = mine.revision if mine else 0
        self._former = own.states() if own else {}
        states = known(self._settings, own, others)
        self._dispatch.restore_costs(states)
        log.info("saved costs are known", models=len(states))


def key(worker: str) -> str:
    """A worker's key: names may hold dots where subjects may not."""
    return base64.b32encode(worker.encode()).decode().rstrip("=").lower()


def _differ(saved: _Samples, now: _Samples) -> bool:
    return any(
        digest not in saved
        or any(abs(after - before) > MATERIAL * before for before, after in zip(saved[digest], after_all, strict=True))
        for digest, after_all in now.items()
    )
