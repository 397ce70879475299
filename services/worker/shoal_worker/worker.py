"""One device's worker: hears the broker, the sidecar and the registry, and carries out what is decided."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterable

from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2
from nats.aio.msg import Msg
from opentelemetry.trace import Tracer

from shoal.scheduler.v1 import scheduler_pb2
from shoal.sidecar.v1 import sidecar_pb2
from shoal.work.v1 import work_pb2
from shoal_common import lanes, logs
from shoal_common.blob_removal import BlobRemoval
from shoal_common.blobs import Blobs
from shoal_common.nats_session import Session
from shoal_common.process import Stop
from shoal_common.registry_view import RegistryView
from shoal_worker import admits, dead_letters, metrics, report
from shoal_worker.acks import Acks
from shoal_worker.attach import Attach
from shoal_worker.cost_store import CostStore
from shoal_worker.decisions import pace
from shoal_worker.decisions.dispatch import Dispatch, Steps
from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.delivery import Pulled
from shoal_worker.exchange import Exchange
from shoal_worker.fetching import Fetched, Fetching
from shoal_worker.handover import Handover
from shoal_worker.held import Held
from shoal_worker.intake import Fate, Judgement, judge
from shoal_worker.load_times import LoadTimes
from shoal_worker.models import Models
from shoal_worker.outbox import Outbox
from shoal_worker.pulls import Pulls
from shoal_worker.reports import Reports
from shoal_worker.requeue import Requeue
from shoal_worker.residency import ABSENT, LOADING, READY, Residency
from shoal_worker.results import Results
from shoal_worker.settings import WorkerSettings
from shoal_worker.spans import Spans
from shoal_worker.stowing import Stowing
from shoal_worker.token_costs import TokenCosts

log = logs.get("worker")
TICK_S = 0.25
COUNTED_IN = (Stage.FETCHING, Stage.ADMITTING, Stage.READY, Stage.RUNNING)
"""Stages in which the sidecar's answer to Admit finds a unit."""
DRAIN_S = 3.0


class _Stopped(Exception):
    """Ends the task group in order."""


class Worker:
    """Everything runs on one loop: handlers change state without waiting, then `_advance` acts on it."""

    def __init__(self, settings: WorkerSettings, session: Session, view: RegistryView, tracer: Tracer) -> None:
        self._settings = settings
        self._session = session
        self._view = view
        self._group = asyncio.TaskGroup()
        self._progress = asyncio.Event()
        """Set when a batch, a result or a return to the queue is done."""
        self._held = Held()
        ties = random.Random()  # noqa: S311 - siblings must not run after the same lane; no secret
        self._dispatch = Dispatch(settings.streams_or_auto, pace.of_device(settings.device), ties, time.monotonic())
        self._residency = Residency(settings.memory_or_auto)
        self._outbox = Outbox(session)
        self._acks = Acks(self._outbox, self._held)
        self._pulls = Pulls(session, self._outbox, self, self._group)
        blobs = Blobs(settings.blobs) if settings.blobs else None
        self._removal = BlobRemoval(blobs)
        self._results = Results(session, self._group, self._settled, self._caller_silent, Stowing(blobs))
        self._fetching = Fetching(
            blobs, session.clock, self._group, self._admit_fetched, self._fetched_late, self._expired_unfetched
        )
        self._spans = Spans(tracer)
        self._attach = Attach(settings.sidecar, self._hello(), self)
        self._models = Models(
            settings,
            view,
            self._residency,
            self._attach,
            self._group,
            self._digests_in_use,
            self._dispatch.plan.empty_s,
            self._models_changed,
        )
        self._load_times = LoadTimes()
        self._token_costs = TokenCosts()
        self._cost_store = CostStore(session, settings, self._dispatch)
        self._handover = Handover(
            settings.worker, session.clock, self._held, self._dispatch, self._acks, self._release, self._let_go
        )
        self._requeue = Requeue(
            session,
            self._attach,
            self._held,
            self._dispatch,
            self._acks,
            self._group,
            self._run_here,
            self._let_go,
            self._progress.set,
        )
        self._exchange = Exchange(self._attach, self._dispatch, self._held, self._residents, self._requeue.start)
        self._reports = Reports(settings.scheduler, self._report, self._models.planned, self._idle_elsewhere)
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self.serving_changed = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        """Whether it can take work: it knows the registry and has its sidecar."""
        return self._attach.is_up and self._view.ready.is_set() and not self._stopping

    async def run(self, stop: Stop) -> None:
        """Works until told to stop; then finishes what the device has and leaves the rest to be delivered again."""
        try:
            async with self._group as group:
                await self._pulls.start()
                await self._session.subscribe(f"{lanes.CANCEL_SUBJECT}.*", self._on_cancel)
                self._session.on_reconnect(self._on_reconnect)
                self._view.on_change(self._on_registry)
                forever = (self._view.follow, self._attach.run, self._outbox.run, self._acks.keep, self._removal.run)
                for run in (*forever, self._cost_store.run, self._tick):
                    group.create_task(run())
                if self._settings.scheduler:
                    group.create_task(self._reports.run())
                await stop.wait()
                await self._finish()
                raise _Stopped
        except* _Stopped:
            pass

    # What the broker brings.

    def pulled(self, messages: list[Pulled], *, waited: bool) -> None:
        """Judges messages, and admits those that are to be served."""
        now_s, broker_s = time.monotonic(), self._session.clock.now_s()
        lanes_here = self._residency.lanes()
        taken = []
        for message in messages:
            delivery = message.delivery
            waited_s = max(0.0, broker_s - delivery.published_s)
            self._dispatch.plan.delivered(message.lane, message.work_class, waited, delivery.pending, now_s, waited_s)
            if self._stopping or not self._attach.is_up:
                continue  # It is delivered again, to whoever can serve it.
            judgement = judge(message, self._held, now_s, broker_s)
            if judgement.fate is Fate.TAKE and judgement.unit is not None:
                if message.lane in lanes_here:  # Else its model was let go: it is delivered again, to others.
                    self._held.add(judgement.unit)
                    taken.append(judgement.unit)
            elif judgement.fate is Fate.ACK:
                self._acks.ack(delivery.ack_subject)
                self._remove_blobs(judgement.unit)
                metrics.units.add(1, outcome=judgement.reason)
            elif judgement.fate is Fate.DEAD:
                self._group.create_task(self._bury(message, judgement))
        self._admit(taken)
        self._advance(now_s)

    def pull_ended(self, pull_id: int, *, empty: bool) -> str | None:
        """A pull ended by a status."""
        now_s = time.monotonic()
        lane = self._dispatch.plan.ended(pull_id, empty=empty, now_s=now_s)
        self._advance(now_s)
        return lane

    def pull_peeked(self, pull_id: int, *, found: bool) -> None:
        """A peek found that work waits, or could not tell."""
        now_s = time.monotonic()
        self._dispatch.plan.peeked(pull_id, now_s, found=found)
        self._advance(now_s)

    def sibling_drained(self, note: DrainNote) -> None:
        """A sibling drained a lane."""
        self._dispatch.plan.sibling_drained(note, time.monotonic())

    def lane_is_back(self, lane: str) -> None:
        """A lane's consumers were made."""
        self._dispatch.plan.resume(lane)
        self._advance(time.monotonic())

    def _on_reconnect(self) -> None:
        self._dispatch.plan.forget_all()
        self._advance(time.monotonic())

    async def _on_cancel(self, msg: Msg) -> None:
        try:
            cancelled = work_pb2.CancelledUnits.FromString(msg.data)
        except DecodeError:
            log.warning("a cancellation cannot be read", subject=msg.subject)
            return
        now_s = time.monotonic()
        self._drop(self._held.cancel(cancelled.unit_ids, cancelled.remember_ms / 1e3, now_s), "cancelled")
        self._advance(now_s)

    # What the sidecar brings.

    def attached(self) -> None:
        """The sidecar is there. Units of a former life come as granted."""
        self._exchange.reset()
        self._models.refresh()
        self.serving_changed.set()

    def detached(self) -> None:
        """The sidecar is gone, and with it every unit that is not answered: the broker delivers them again."""
        now_s = time.monotonic()
        self._exchange.reset()
        self._dispatch.lost(now_s)
        for unit in self._held:
            if unit.stage is not Stage.ANSWERED:
                self._held.remove(unit)
        self._models.all_lost()
        self.serving_changed.set()

    def heard(self, response: sidecar_pb2.AttachResponse) -> None:
        """A message from the sidecar."""
        now_s = time.monotonic()
        match response.WhichOneof("message"):
            case "admitted":
                self._admitted(response.admitted)
            case "batch_done":
                self._batch_done(response.batch_done, now_s)
            case "batch_refused":
                self._batch_refused(response.batch_refused, now_s)
            case "model_status":
                self._models.heard(response.model_status)
            case "siblings":
                self._exchange.siblings(response.siblings.workers)
            case "granted":
                self._admit(self._handover.granted(response.granted))
                self._exchange.granted(response.granted.number)
            case "taken":
                self._handover.taken(response.taken)
            case "not_owned":
                self._handover.not_owned(response.not_owned)
            case "returned":
                self._requeue.returned(response.returned)
        self._progress.set()
        self._advance(now_s)

    def _admitted(self, admitted: sidecar_pb2.Admitted) -> None:
        failed = []
        for answer in admitted.units:
            unit = self._held.get(answer.unit_id)
            if unit is None or unit.is_counted or unit.stage not in COUNTED_IN:
                continue  # Cancelled meanwhile.
            if answer.error:
                self._not_admitted(unit, answer.error, failed)
            elif answer.owner != self._settings.worker:
                self._dispatch.leave(unit, Stage.GONE)  # A sibling has it and answers it.
                self._held.remove(unit)
            else:
                unit.payload = b""
                self._dispatch.counted(unit, answer.items, answer.tokens, answer.squared_tokens)
        self._answer(failed)

    def _not_admitted(self, unit: HeldUnit, error: bytes, failed: list[tuple[HeldUnit, work_pb2.UnitResult]]) -> None:
        if status_pb2.Status.FromString(error).code == code_pb2.UNAVAILABLE:
            self._dispatch.leave(unit, Stage.PARKED)
            self._models.lost(unit.profile_digest)
            return
        self._dispatch.leave(unit, Stage.GONE)
        failed.append((unit, self._result(unit, error=error)))

    def _batch_done(self, done: sidecar_pb2.BatchDone, now_s: float) -> None:
        ended_s = now_s - (time.time() - done.started_unix_ns / 1e9 - done.compute_ms / 1e3)
        batch = self._dispatch.finished(done.batch_id, done.compute_ms, now_s, ended_s)
        if batch is None:
            return
        broker_ahead_s = self._session.clock.now_s() - time.time()
        started_s = done.started_unix_ns / 1e9 + broker_ahead_s
        results = []
        for outcome in done.units:
            unit = self._held.get(outcome.unit_id)
            if unit is None or self._is_unsent(unit, now_s):
                continue
            result = self._result(
                unit,
                results=outcome.results,
                attempt=outcome.attempt,
                queue_ms=max(0.0, started_s - unit.published_s) * 1e3,
                compute_ms=done.compute_ms,
                runtime=done.runtime,
            )
            results.append((unit, result))
            if unit.traceparent:
                published_ns = int((unit.published_s - broker_ahead_s) * 1e9)
                self._spans.computed(unit, published_ns, outcome.tokenize, done)
        self._answer(results)
        for unit in batch.units:
            if unit.stage is Stage.RUNNING:
                log.error("the sidecar left a unit out of its batch", unit=unit.id, request_id=unit.request_id)
                self._held.remove(unit)
        if batch.device_ms > 0:  # Else none of its items could run.
            metrics.batch_cost_ratio.record(batch.device_ms / batch.foreseen_ms)
            here = self._residency.get(batch.profile_digest)
            error = abs(batch.foreseen_ms - batch.device_ms) / batch.device_ms
            metrics.cost_error.record(error, {"model": here.model.name if here else ""})
        estimated_tokens = sum(unit.estimated_tokens for unit in batch.units)
        self._token_costs.ran(batch.profile_digest, self._dispatch.in_full_batches_ms(batch), estimated_tokens)

    def _is_unsent(self, unit: HeldUnit, now_s: float) -> bool:
        """Whether nobody waits for a result any more; then its unit is done with."""
        if self._held.is_cancelled(unit.id, now_s):
            outcome = "cancelled"
        elif unit.deadline_s <= now_s:
            outcome = "expired"
        else:
            return False
        self._held.finish(unit, now_s)
        self._let_go([unit], outcome)
        return True

    def _batch_refused(self, refused: sidecar_pb2.BatchRefused, now_s: float) -> None:
        batch = self._dispatch.refused(refused.batch_id, now_s)
        if batch is None:
            return
        not_owned = set(refused.not_owned)
        for unit in batch.units:
            if unit.stage is not Stage.RUNNING:
                continue  # The sidecar has said why, in its answer to Admit.
            if unit.id in not_owned:
                self._held.remove(unit)
            else:
                self._dispatch.return_unit(unit)
        if refused.model_not_ready:
            self._models.lost(batch.profile_digest)

    # What the registry brings.

    def _on_registry(self) -> None:
        self._models.registry_changed()
        self.serving_changed.set()

    def _models_changed(self) -> None:
        now_s = time.monotonic()
        runnable = {
            here.model.digest: here.model.profile.tuned_for(self._settings.device)
            for here in self._residency
            if self._residency.is_ready(here.model.digest)
        }
        lanes_to_pull = self._residency.lanes_to_pull()
        self._dispatch.serve(runnable, lanes_to_pull)
        self._pulls.follow(lanes_to_pull)
        self._load_times.follow(self._residency, now_s)
        self._exchange.models_changed()
        self._admit(self._held.at(Stage.PARKED))
        self._reports.changed()
        self._advance(now_s)

    # What is done about it.

    def _advance(self, now_s: float) -> None:
        if not self._attach.is_up:
            return
        if not self._stopping:
            self._carry_out(self._dispatch.advance(now_s))
        self._exchange.post(now_s)

    def _carry_out(self, steps: Steps) -> None:
        self._drop(steps.expired, "expired")
        for batch_id, batch in steps.batches:
            run = sidecar_pb2.RunBatch(
                batch_id=batch_id,
                unit_ids=[unit.id for unit in batch.units],
                trace=any(unit.traceparent for unit in batch.units),
            )
            self._attach.send(sidecar_pb2.AttachRequest(run_batch=run))
            metrics.batch_tokens.record(batch.tokens)
            age_s = self._session.clock.now_s() - batch.units[0].published_s
            metrics.queue_age_ms.record(max(0.0, age_s) * 1e3, {"class": batch.work_class})
        for order in steps.pulls:
            self._pulls.send(order)
        for note in steps.notes:
            self._pulls.tell(note)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if steps.wake_in_s is not None:
            self._timer = asyncio.get_running_loop().call_later(steps.wake_in_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._advance(time.monotonic())

    def _admit(self, units: list[HeldUnit]) -> None:
        """Sends parked units to the sidecar; one whose model is not ready stays parked until it is, or the deadline."""
        runnable = [unit for unit in units if self._dispatch.can_run(unit.profile_digest)]
        fresh = [unit for unit in runnable if not unit.is_counted]
        for unit in runnable:
            if unit.is_counted:
                self._dispatch.granted(unit)  # The sidecar has it.
        arrived, blobless = [], []
        for unit in fresh:
            fetched = self._fetching.here(unit)
            if fetched is not None:
                arrived.append((unit, fetched))
            if not unit.blobs:
                blobless.append(unit)
            elif fetched is not None or self._fetching.start(unit):
                self._dispatch.fetching(unit)
        self._dispatch.admitting(blobless, time.monotonic())
        for request in admits.pack(arrived):
            self._attach.send(request)

    async def _admit_fetched(self, unit: HeldUnit, items: Fetched) -> None:
        """A unit's blobs came, or will not; returns when all is on its way to the sidecar."""
        if unit.stage not in (Stage.FETCHING, Stage.PARKED):
            return  # Cancelled meanwhile.
        if not self._dispatch.can_run(unit.profile_digest):
            self._dispatch.leave(unit, Stage.PARKED)  # They are fetched again when its model is back.
            return
        if unit.stage is Stage.PARKED:
            self._dispatch.fetching(unit)
        [request] = admits.pack([(unit, items)])
        await self._attach.deliver(request)

    def _fetched_late(self, unit: HeldUnit) -> None:
        if unit.stage is Stage.FETCHING:
            self._dispatch.leave(unit, Stage.PARKED)
            self._advance(time.monotonic())

    def _expired_unfetched(self, unit: HeldUnit) -> None:
        if unit.stage is not Stage.GONE:
            self._drop([unit], "expired")
            self._advance(time.monotonic())

    def _remove_blobs(self, unit: HeldUnit | None) -> None:
        """A unit is done with, and so are its items in object storage."""
        if unit is not None and unit.blobs:
            self._removal.add(blob.key for blob in unit.blobs)

    def _run_here(self, unit: HeldUnit) -> None:
        """A unit that was to go back to the queue is admitted again."""
        if self._attach.is_up:
            self._admit([unit])
            self._advance(time.monotonic())
        else:
            self._held.remove(unit)  # It is delivered again.

    def _release(self, unit_ids: Iterable[str]) -> None:
        self._attach.send(sidecar_pb2.AttachRequest(release=sidecar_pb2.Release(unit_ids=unit_ids)))

    def _drop(self, units: list[HeldUnit], outcome: str) -> None:
        """Lets units go unrun: nobody waits for them."""
        if not units:
            return
        for unit in units:
            self._dispatch.leave(unit, Stage.GONE)
            self._held.remove(unit)
        self._release(unit.id for unit in units)
        self._let_go(units, outcome)

    def _let_go(self, units: list[HeldUnit], outcome: str) -> None:
        """Units are over without an answer: nobody else is to run them."""
        for unit in units:
            self._acks.ack(unit.ack_subject)
            self._remove_blobs(unit)
        metrics.units.add(len(units), outcome=outcome)

    def _result(self, unit: HeldUnit, **fields) -> work_pb2.UnitResult:
        fields.setdefault("attempt", unit.deliveries)
        return work_pb2.UnitResult(
            unit_id=unit.id, last=True, worker=self._settings.worker, device=self._settings.device, **fields
        )

    def _answer(self, results: list[tuple[HeldUnit, work_pb2.UnitResult]]) -> None:
        now_s = time.monotonic()
        for unit, _ in results:
            unit.answered_s = now_s
        self._results.send(results)

    def _caller_silent(self, reply_subject: str) -> None:
        self._held.caller_silent(reply_subject, self._session.clock.now_s())

    def _settled(self, units: list[HeldUnit]) -> None:
        """Results were confirmed, or nobody is there to do it: their units are done with."""
        now_s = time.monotonic()
        for unit in units:
            self._acks.ack(unit.ack_subject)
            self._remove_blobs(unit)
            if unit.orphaned:
                # It is run anew if it is delivered again: its caller may have been slow.
                self._held.remove(unit)
                log.warning("nobody took a result", unit=unit.id, request_id=unit.request_id)
            else:
                self._held.finish(unit, now_s)
                if unit.traceparent:
                    self._spans.confirmed(unit)
        outcomes = Counter("orphaned" if unit.orphaned else "done" for unit in units)
        for outcome, count in outcomes.items():
            metrics.units.add(count, outcome=outcome)
        self._progress.set()

    async def _bury(self, message: Pulled, judgement: Judgement) -> None:
        """Ends a message's deliveries; where its caller can be told, once that is done."""
        if not await dead_letters.keep(self._session, message, judgement):
            return  # It is delivered again, and buried then.
        unit, error = judgement.unit, judgement.error
        if unit is None or error is None:
            self._acks.term(message.delivery.ack_subject)
            metrics.units.add(1, outcome=judgement.reason)
            return
        status = error.status(unit.request_id).SerializeToString()
        self._answer([(unit, self._result(unit, error=status))])

    # What time brings.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._dispatch.plan.forget_late(now_s)
            self._held.forget_old(now_s, self._session.clock.now_s())
            self._drop([unit for unit in self._held.at(Stage.PARKED) if unit.deadline_s <= now_s], "expired")
            self._leave_strangers()
            self._models.step()
            self._advance(now_s)

    async def _finish(self) -> None:
        """Waits for the device's batches and for their results to be confirmed.

        Units that wait here are offered to siblings. What nobody takes the sidecar keeps, for them or for
        this worker's restart, and the broker delivers it again.
        """
        self._stopping = True
        self.serving_changed.set()
        self._exchange.leave()
        self._exchange.post(time.monotonic())
        await self._pulls.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while len(self._dispatch.device) or not self._results.is_idle or not self._requeue.is_idle:
                    self._progress.clear()
                    await self._progress.wait()
        await self._outbox.flush()
        await self._removal.flush()
        await self._cost_store.save()

    def _hello(self) -> sidecar_pb2.Hello:
        settings = self._settings
        return sidecar_pb2.Hello(
            worker=settings.worker,
            device=settings.device,
            streams=settings.streams_or_auto,
            threads=settings.threads_or_auto,
        )

    def _leave_strangers(self) -> None:
        """Lets go of granted units whose lane has left this worker's pool: they are delivered again, to others."""
        if self._view.ready.is_set() and self._attach.is_up:
            lanes_here = self._residency.lanes()
            strangers = [
                unit for unit in self._held.at(Stage.PARKED) if unit.is_counted and unit.lane not in lanes_here
            ]
            for unit in strangers:
                self._held.remove(unit)
            if strangers:
                self._release(unit.id for unit in strangers)

    def _residents(self, now_s: float) -> list[sidecar_pb2.Resident]:
        """The models that can run here, and those that could: with what loading them would take."""
        return [
            sidecar_pb2.Resident(
                profile_digest=here.model.digest,
                load_ms=0.0 if here.state == READY else self._load_times.left_ms(here.model.digest, now_s),
            )
            for here in self._residency
            if here.state == READY or (here.wanted and here.state in (ABSENT, LOADING))
        ]

    def _idle_elsewhere(self, idle_lanes: frozenset[str]) -> None:
        """The scheduler tells for which lanes a worker on another machine has nothing to do."""
        self._exchange.idle_lanes = idle_lanes
        self._exchange.post(time.monotonic())

    def _digests_in_use(self) -> set[str]:
        return {unit.profile_digest for unit in self._held}

    def _report(self) -> scheduler_pb2.ReportRequest:
        return report.build(
            self._settings, self._residency, self._dispatch, self._token_costs, self._held, time.monotonic()
        )
