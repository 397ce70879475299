"""What those who run a mesh see of its queue, and what they can do about dead letters; needs the scope `admin`.

with shoal.connect() as mesh:
    print(mesh.queue.lanes().dead_letters)
    mesh.queue.requeue(reason="DELIVERY_LIMIT")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shoal import loop_thread
from shoal.choices import Priority
from shoal.deadline import Deadline
from shoal.models import ModelState, state_name
from shoal.options import DEFAULT_TIMEOUT_S, seconds
from shoal.v1 import inference_pb2, queue_pb2, queue_pb2_grpc

CLEARING_TIMEOUT_S = 600.0
"""Of a call that may deal with very many letters."""
_PRIORITIES: dict[int, Priority] = {
    inference_pb2.PRIORITY_INTERACTIVE: "interactive",
    inference_pb2.PRIORITY_BULK: "bulk",
}


@dataclass(frozen=True)
class LaneClass:
    """One of a lane's two queues."""

    priority: Priority
    waiting_units: int
    """Units that no worker has pulled."""
    in_flight_units: int
    """Units that workers have pulled and not finished."""
    oldest_waiting_ms: int
    """Age of the oldest unit that no worker has pulled; 0 without one."""
    open: bool
    """Whether workers can pull from it."""


@dataclass(frozen=True)
class LaneWorker:
    """What one worker does with a lane."""

    worker: str
    machine: str
    device: str
    state: ModelState
    error: str
    """Why loading failed; empty otherwise."""
    progress: str
    """How far loading has come; empty otherwise."""
    backlog_ms: float
    """Predicted milliseconds of this lane's units that it holds."""
    busy_share: float
    """Share of the last second in which its device was busy: 0 to 1."""


@dataclass(frozen=True)
class Lane:
    """The queue of one model revision in one pool."""

    token: str
    """Its name in the broker's subjects and in logs."""
    model: str
    """Empty once no registered model is served on it."""
    revision: str
    pool: str
    state: ModelState
    error: str
    classes: tuple[LaneClass, ...]
    workers: tuple[LaneWorker, ...]
    queued_ms: float
    """Predicted milliseconds of device time queued, in the broker and at workers."""
    drain_ms_per_second: float
    wait_ms: float
    """How long a unit sent now would wait."""


@dataclass(frozen=True)
class Lanes:
    """All lanes as they are now."""

    lanes: tuple[Lane, ...]
    dead_letters: dict[str, int]
    """How many there are, by reason."""
    scheduler_known: bool
    """Whether the scheduler was heard: states and workers come from it."""


@dataclass(frozen=True)
class DeadLetter:
    """A unit (a run of items of one request) that could not be served."""

    sequence: int
    """Names it."""
    kept_unix_ms: int
    """Milliseconds since 1970 on the broker's clock."""
    reason: str
    """For instance "DELIVERY_LIMIT" or "MALFORMED_UNIT"."""
    detail: str
    model: str
    """Empty when no registered model is served on its lane."""
    lane: str
    priority: Priority
    deliveries: int
    unit_id: str
    """Empty where it cannot be read, as the three that follow."""
    request_id: str
    tenant: str
    items: int
    size_bytes: int


@dataclass(frozen=True)
class DeadLetterPage:
    """Dead letters, oldest first."""

    letters: tuple[DeadLetter, ...]
    remaining: int
    """Letters behind these."""


@dataclass(frozen=True)
class Refusal:
    """Why a letter stays a dead letter."""

    sequence: int
    reason: str
    """For instance "MALFORMED_UNIT" or "LANE_FULL"."""
    message: str


@dataclass(frozen=True)
class Requeued:
    """What became of letters that were to go back."""

    requeued: int
    refused: int
    refusals: tuple[Refusal, ...]
    """Of the first thousand that were refused."""


@dataclass(frozen=True)
class Dropped:
    """What became of letters that were to be deleted."""

    dropped: int
    not_found: tuple[int, ...]
    """Sequences that named no letter."""


class Queue:
    """The queue, for asyncio. All methods raise CallError."""

    def __init__(
        self,
        unary: Callable[[Callable[[], Any], Any, Deadline], Awaitable[Any]],
        stub: Callable[[], queue_pb2_grpc.QueueServiceStub],
    ) -> None:
        """`unary` makes a call of the stub, within a deadline, with the client's own retries."""
        self._unary = unary
        self._stub = stub

    async def lanes(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Lanes:
        """Every lane with its counts, ages and workers."""
        request = queue_pb2.ListLanesRequest()
        response = await self._unary(lambda: self._stub().ListLanes, request, Deadline(seconds(timeout)))
        return Lanes(
            lanes=tuple(_lane(message) for message in response.lanes),
            dead_letters={each.reason: each.letters for each in response.dead_letters},
            scheduler_known=response.scheduler_known,
        )

    async def dead_letters(
        self, *, limit: int = 100, after: int = 0, reason: str = "", timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> DeadLetterPage:
        """At most `limit` (up to 500) dead letters behind the sequence `after`, of a reason if one is given."""
        request = queue_pb2.ListDeadLettersRequest(limit=limit, after_sequence=after, reason=reason)
        response = await self._unary(lambda: self._stub().ListDeadLetters, request, Deadline(seconds(timeout)))
        return DeadLetterPage(tuple(_letter(message) for message in response.letters), response.remaining)

    async def requeue(
        self,
        sequences: Iterable[int] = (),
        *,
        reason: str = "",
        all: bool = False,
        timeout: float | None = CLEARING_TIMEOUT_S,
    ) -> Requeued:
        """Puts dead letters back on their lanes: those of `sequences`, of a reason, or all.

        Their callers were answered long ago, so the new results are dropped: it shows whether they can be
        served now.
        """
        request = queue_pb2.RequeueDeadLettersRequest(sequences=sequences, reason=reason, all=all)
        response = await self._unary(lambda: self._stub().RequeueDeadLetters, request, Deadline(seconds(timeout)))
        refusals = tuple(Refusal(each.sequence, each.reason, each.message) for each in response.refusals)
        return Requeued(response.requeued, response.refused, refusals)

    async def drop(
        self,
        sequences: Iterable[int] = (),
        *,
        reason: str = "",
        all: bool = False,
        timeout: float | None = CLEARING_TIMEOUT_S,
    ) -> Dropped:
        """Deletes dead letters: those of `sequences`, of a reason, or all."""
        request = queue_pb2.DropDeadLettersRequest(sequences=sequences, reason=reason, all=all)
        response = await self._unary(lambda: self._stub().DropDeadLetters, request, Deadline(seconds(timeout)))
        return Dropped(response.dropped, tuple(response.not_found))


class BlockingQueue:
    """The queue, for the blocking client: Queue's methods."""

    def __init__(self, queue: Queue) -> None:
        """Wraps a queue whose mesh no other event loop has used."""
        self._queue = queue

    def lanes(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Lanes:
        """Every lane with its counts, ages and workers."""
        return loop_thread.run(self._queue.lanes(timeout=timeout))

    def dead_letters(
        self, *, limit: int = 100, after: int = 0, reason: str = "", timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> DeadLetterPage:
        """At most `limit` (up to 500) dead letters behind the sequence `after`, of a reason if one is given."""
        return loop_thread.run(self._queue.dead_letters(limit=limit, after=after, reason=reason, timeout=timeout))

    def requeue(
        self,
        sequences: Iterable[int] = (),
        *,
        reason: str = "",
        all: bool = False,
        timeout: float | None = CLEARING_TIMEOUT_S,
    ) -> Requeued:
        """Puts dead letters back on their lanes; see Queue.requeue."""
        return loop_thread.run(self._queue.requeue(sequences, reason=reason, all=all, timeout=timeout))

    def drop(
        self,
        sequences: Iterable[int] = (),
        *,
        reason: str = "",
        all: bool = False,
        timeout: float | None = CLEARING_TIMEOUT_S,
    ) -> Dropped:
        """Deletes dead letters: those of `sequences`, of a reason, or all."""
        return loop_thread.run(self._queue.drop(sequences, reason=reason, all=all, timeout=timeout))


def _lane(message: queue_pb2.Lane) -> Lane:
    return Lane(
        token=message.token,
        model=message.model,
        revision=message.revision,
        pool=message.pool,
        state=state_name(message.state),
        error=message.error,
        classes=tuple(
            LaneClass(
                priority=_PRIORITIES.get(each.priority, "interactive"),
                waiting_units=each.waiting_units,
                in_flight_units=each.in_flight_units,
                oldest_waiting_ms=each.oldest_waiting_ms,
                open=each.open,
            )
            for each in message.classes
        ),
        workers=tuple(
            LaneWorker(
                worker=each.worker,
                machine=each.machine,
                device=each.device,
                state=state_name(each.state),
                error=each.error,
                progress=each.progress,
                backlog_ms=each.backlog_ms,
                busy_share=each.busy_share,
            )
            for each in message.workers
        ),
        queued_ms=message.queued_ms,
        drain_ms_per_second=message.drain_ms_per_second,
        wait_ms=message.wait_ms,
    )


def _letter(message: queue_pb2.DeadLetter) -> DeadLetter:
    return DeadLetter(
        sequence=message.sequence,
        kept_unix_ms=message.kept_unix_ms,
        reason=message.reason,
        detail=message.detail,
        model=message.model,
        lane=message.lane,
        priority=_PRIORITIES.get(message.priority, "interactive"),
        deliveries=message.deliveries,
        unit_id=message.unit_id,
        request_id=message.request_id,
        tenant=message.tenant,
        items=message.items,
        size_bytes=message.size_bytes,
    )
