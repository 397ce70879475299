"""How much of its requests this gateway publishes to each lane, and which it refuses: each tenant has its share.

What is known of a lane comes from the scheduler. Nothing is held back from a lane of which nothing is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.scheduler.v1 import scheduler_pb2
from shoal.work.v1 import work_pb2
from shoal_common import errors, limits
from shoal_common.lanes import CLASSES
from shoal_common.tokens import Identity
from shoal_gateway import metrics
from shoal_gateway.admission import LEAST_RETRY_S, MOST_RETRY_S
from shoal_gateway.fair_share import FairShare, Place
from shoal_gateway.lane_states import LaneStates
from shoal_gateway.results import Waiting
from shoal_gateway.units import Run

UNMEASURED_TOKENS = 16_384
"""The window of a lane of which no worker has measured anything, or that none has loaded yet: two full batches of a
GPU, 1.6 s of two cores. It holds until the first batch is done."""


class Rates(NamedTuple):
    """What is known of a lane, as this gateway's part of it; tokens are those that gateways estimate."""

    window_tokens: float
    """May be published and not answered."""
    contested_tokens: float
    """The same while a tenant beyond its share meets one within it."""
    tokens_per_s: float
    """What the lane's workers do in full batches; 0 when it is not known."""
    ms_per_token: float


CONTESTED_PART = 1 / 5
"""Of a lane's window, while a tenant within its share meets one beyond: batches are shorter than devices could run
them, and little waits for the next. It costs about a tenth of the throughput of full batches, and more than halves
how long the one waits behind the other's units (bench.fairness)."""
UNMEASURED = Rates(UNMEASURED_TOKENS, UNMEASURED_TOKENS * CONTESTED_PART, UNMEASURED_TOKENS, 1e3 / UNMEASURED_TOKENS)
"""As if a window took a second: what floods in before the first batch is done must not wait for minutes after it."""


class Turns:
    """One request's units: how many of them may be published by now."""

    def __init__(self, share: FairShare, identity: Identity, costs: Sequence[float], waiting: Waiting) -> None:
        self._share = share
        self._done = waiting.done
        self._changed = asyncio.Event()
        self._place: Place = share.enter(identity.tenant, identity.weight, costs, self._changed.set)
        if len(costs) > 1:  # The last one's answer is the request's end.
            indices = {unit_id: index for index, unit_id in enumerate(waiting.unit_ids)}
            waiting.on_answer = lambda unit_id: share.answered(self._place, indices[unit_id])

    @property
    def ready(self) -> int:
        """So many units, from the first on, may be published."""
        return self._place.admitted

    async def after(self, published: int) -> None:
        """Returns when more than `published` units may be, or the request has ended."""
        if self.ready > published:
            return
        began_s = time.monotonic()
        self._done.add_done_callback(self._end)
        try:
            while self.ready == published and not self._done.done():
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._done.remove_done_callback(self._end)
            metrics.turn_ms.record((time.monotonic() - began_s) * 1000)

    def leave(self) -> None:
        """The request has ended."""
        self._share.leave(self._place)

    def _end(self, _: asyncio.Future[errors.CallError | None]) -> None:
        self._changed.set()


class Pace:
    """A request that was not refused, in the lane that it goes to."""

    def __init__(self, share: FairShare | None, identity: Identity, costs: Sequence[float]) -> None:
        self._share = share
        self._identity = identity
        self._costs = costs

    def enter(self, waiting: Waiting) -> Turns | None:
        """Its units join the lane; whoever calls has them leave. None when nothing is held back."""
        return Turns(self._share, self._identity, self._costs, waiting) if self._share is not None else None


class Pacing:
    """Owns the windows of all lanes and classes."""

    def __init__(self, lane_states: LaneStates) -> None:
        self._lane_states = lane_states
        self._rates: dict[str, Rates] = {}
        self._shares: dict[tuple[str, work_pb2.WorkClass], FairShare] = {}

    def lanes_changed(self, tokens: Iterable[str]) -> None:
        """Takes what is known of these lanes now."""
        for token in tokens:
            lane = self._lane_states.get(token)
            if lane is None:
                self._forget(token)
            elif (rates := self._measured(token, lane.state)) is not None:
                self._rates[token] = rates
                for work_class in CLASSES:
                    if (share := self._shares.get((token, work_class))) is not None:
                        share.set_window(rates.window_tokens, rates.contested_tokens)
            else:
                # What was measured before holds while no worker is ready: a restart lets no flood through.
                self._rates.setdefault(token, UNMEASURED)

    def _measured(self, token: str, state: scheduler_pb2.LaneState) -> Rates | None:
        """This gateway's part: what the others leave, and never less than an equal part."""
        if state.window_ms <= 0 or state.ms_per_token <= 0:
            return None
        gateways = max(1, self._lane_states.watchers)
        others_tokens = 0.0
        if gateways > 1:
            ours = (self._shares.get((token, work_class)) for work_class in CLASSES)
            ours_tokens = sum(share.total for share in ours if share is not None)
            others_tokens = max(0.0, state.queued_ms / state.ms_per_token - ours_tokens)

        def part(tokens: float) -> float:
            return max(tokens / gateways, tokens - others_tokens)

        whole_tokens = state.window_ms / state.ms_per_token
        window_tokens = part(whole_tokens)
        return Rates(
            window_tokens,
            part(whole_tokens * CONTESTED_PART),
            state.drain_ms_per_second / state.ms_per_token * window_tokens / whole_tokens,
            state.ms_per_token,
        )

    def pace(
        self,
        lane: str,
        model: str,
        work_class: work_pb2.WorkClass,
        runs: Iterable[Run],
        identity: Identity,
        left_s: float,
    ) -> Pace:
        """How a request's units are to go, which must be answered in `left_s`.

        Raises:
            CallError: RESOURCE_EXHAUSTED; its tenant has as much waiting there as its share allows.
        """
        rates = self._rates.get(lane)
        if rates is None:
            return Pace(None, identity, ())
        share = self._shares.get((lane, work_class))
        if share is None:
            share = self._shares[lane, work_class] = FairShare(rates.window_tokens, rates.contested_tokens)
        if queued := share.waiting_cost(identity.tenant):
            _check(rates, share.share(identity.tenant, identity.weight), queued, model, identity, left_s)
        return Pace(share, identity, [max(1, run.estimated_tokens) for run in runs])

    def _forget(self, token: str) -> None:
        self._rates.pop(token, None)
        for work_class in CLASSES:
            if (share := self._shares.pop((token, work_class), None)) is not None:
                share.open()


def _check(rates: Rates, share: float, queued_tokens: float, model: str, identity: Identity, left_s: float) -> None:
    """Refuses a tenant whose work that waits takes its share of the lane longer than it may, or than there is time."""
    if rates.tokens_per_s <= 0:
        return
    published_s = rates.window_tokens / rates.tokens_per_s
    most_s = min(limits.QUEUE_WAIT_S, max(0.0, left_s - published_s))
    wait_s = queued_tokens / (rates.tokens_per_s * share)
    if wait_s < most_s:
        return
    # Half of it is gone then: neither do all come back at once to a full queue, nor does it run dry.
    retry_s = min(max(wait_s - most_s, wait_s / 2, LEAST_RETRY_S), MOST_RETRY_S)
    queued_ms = queued_tokens * rates.ms_per_token
    raise errors.tenant_over_share(model, identity.tenant, queued_ms, queued_ms * most_s / wait_s, retry_s)
