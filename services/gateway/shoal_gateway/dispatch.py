"""One request's way from its bytes to its answer's bytes, over the queue and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.scheduler.v1 import scheduler_pb2
from shoal.work.v1 import work_pb2
from shoal_common import errors, limits, request_ids
from shoal_common.blobs import Blob, Data
from shoal_common.lanes import shard_of
from shoal_common.nats_session import Session
from shoal_common.tokens import Identity
from shoal_gateway import admission, checks, item_faults, metrics, publishing, units
from shoal_gateway.blob_items import BlobItems
from shoal_gateway.blob_results import BlobResults
from shoal_gateway.cancellations import Cancellations
from shoal_gateway.checks import CheckedRequest, Models
from shoal_gateway.encode_options import OptionChecks
from shoal_gateway.lane_states import LaneStates
from shoal_gateway.pacing import Pace, Pacing
from shoal_gateway.reassembly import Answer
from shoal_gateway.results import Results, Waiting
from shoal_gateway.room import Room
from shoal_gateway.sending import Sending
from shoal_gateway.traces import Traces, Untraced, reason
from shoal_gateway.units import Run


class Caller(NamedTuple):
    """What a request brings beside its message."""

    request_id: str
    budget_s: float
    """Seconds in which it must be answered."""
    traceparent: str | None
    identity: Identity


class Dispatch:
    """Serves requests; knows nothing of how they came."""

    def __init__(
        self,
        session: Session,
        models: Models,
        lane_states: LaneStates,
        results: Results,
        cancellations: Cancellations,
        traces: Traces,
        blob_items: BlobItems,
        blob_results: BlobResults,
        pacing: Pacing,
    ) -> None:
        self._session = session
        self._models = models
        self._lane_states = lane_states
        self._results = results
        self._cancellations = cancellations
        self._traces = traces
        self._blob_items = blob_items
        self._blob_results = blob_results
        self._pacing = pacing
        self._options = OptionChecks()
        self.room = Room(limits.REQUESTS_BYTES)
        """For the requests that are in hand; whoever calls takes it before and gives it back after."""

    async def encode(self, raw: Data, caller: Caller) -> bytes:
        """An EncodeResponse for an EncodeRequest, both serialized.

        Raises:
            CallError: the request was refused or could not be answered; its units are cancelled.
        """
        spans = self._traces.begin("Encode", caller.request_id, caller.traceparent)
        try:
            response = await self._encode(raw, caller, spans)
        except BaseException as error:
            metrics.rejections.add(1, reason=reason(error))
            spans.end(error)
            raise
        spans.end()
        return response

    def lanes_changed(self, tokens: Iterable[str]) -> None:
        """Ends the requests that wait on a lane whose model turned out not to load."""
        for token in tokens:
            lane = self._lane_states.get(token)
            if lane is not None and lane.state.residency == scheduler_pb2.RESIDENCY_FAILED:
                for waiting in self._results.waiting_on(token):
                    waiting.fail(admission.failed(lane, waiting.model))

    async def _encode(self, raw: Data, caller: Caller, spans: Untraced) -> bytes:
        deadline_s = time.monotonic() + caller.budget_s
        if caller.budget_s <= 0:
            raise admission.expired()
        spans.stage("check")
        request = checks.check(checks.parse(raw), self._models, self._options)
        model, lane = request.model, request.model.lane.token
        refusal = admission.refusal(self._lane_states.get(lane), model.name, caller.budget_s, time.monotonic())
        if refusal is not None:
            raise refusal
        takes_media = "media" in model.profile.encode.inputs
        faults = item_faults.faults(
            request.items, model.name, takes_media=takes_media, has_storage=self._blob_items.has_storage
        )
        runs = _named(units.cut(request.items, faults, request.options.max_tokens, self._blob_items.least_bytes))
        pace = self._pacing.pace(lane, model.name, request.work_class, runs.values(), caller.identity, caller.budget_s)
        answer = Answer(len(request.items), faults, runs)
        if runs:
            waiting = Waiting(caller.request_id, lane, model.name, answer)
            async with self._blob_items.written(runs, waiting, deadline_s) as blobs:
                work = self._units(request, runs, blobs, caller)
                await self._run(work, pace, waiting, caller, deadline_s, spans)
            await self._blob_results.read(answer, request.items, deadline_s)
        spans.stage("reassemble")
        metrics.requests.add(1)
        metrics.items.add(len(request.items))
        return answer.response(model.name, model.digest)

    async def _run(
        self,
        units: Sequence[work_pb2.Unit],
        pace: Pace,
        waiting: Waiting,
        caller: Caller,
        deadline_s: float,
        spans: Untraced,
    ) -> None:
        """Has the units worked on; returns with the answer complete, else nobody waits for them any more."""
        self._results.expect(waiting)
        turns = pace.enter(waiting)
        sending = Sending(self._session, waiting, units, turns)
        late = asyncio.get_running_loop().call_later(deadline_s - time.monotonic(), waiting.expire)
        try:
            await sending.run(deadline_s, spans)
            spans.stage("wait")
            error = await waiting.done
            if waiting.is_late:
                error = self._too_late(sending, waiting, caller)
        except TimeoutError:
            error = self._too_late(sending, waiting, caller)
        finally:
            late.cancel()
            self._results.forget(waiting)
            if turns is not None:
                turns.leave()
            if unanswered := sending.unanswered():
                metrics.cancelled_units.add(len(unanswered))
                self._cancellations.add(shard_of(waiting.lane), unanswered, deadline_s - time.monotonic())
        if error is not None:
            raise error

    def _too_late(self, sending: Sending, waiting: Waiting, caller: Caller) -> errors.CallError:
        """Why there was no answer by the deadline."""
        if sending.is_queue_away:
            return publishing.away()
        return admission.too_late(self._lane_states.get(waiting.lane), waiting.model, caller.budget_s)

    def _units(
        self,
        request: CheckedRequest,
        runs: Mapping[str, Run],
        blobs: Mapping[str, Blob],
        caller: Caller,
    ) -> list[work_pb2.Unit]:
        return [
            work_pb2.Unit(
                id=unit_id,
                request_id=caller.request_id,
                reply_subject=self._results.subject,
                tenant=caller.identity.tenant,
                work_class=request.work_class,
                task=work_pb2.TASK_ENCODE,
                profile_digest=request.model.digest,
                estimated_tokens=run.estimated_tokens,
                first_index=run.first_index,
                options=request.options.options,
                items=[b""] if unit_id in blobs else map(bytes, run.items),
                blobs=[blobs[unit_id].message()] if unit_id in blobs else (),
            )
            for unit_id, run in runs.items()
        ]


def _named(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by the ids of their units, which no other unit in the mesh ever has."""
    prefix = request_ids.new()
    return {f"{prefix}.{n}": run for n, run in enumerate(runs)}
