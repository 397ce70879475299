"""QueueService: what waits and who serves it, and what becomes of dead letters. For those who run the mesh."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Container, Iterator, Sequence

import grpc

from shoal.v1 import queue_pb2, queue_pb2_grpc
from shoal_common import dead_letters, errors, limits, logs, queue_survey
from shoal_common.dead_letters import Letter
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_common.together import together
from shoal_gateway import fleet, publishing, requeueing
from shoal_gateway.auth import Auth
from shoal_gateway.known_models import KnownModels
from shoal_gateway.lane_states import LaneStates
from shoal_gateway.queue_messages import lane_messages, letter_message

NAME = "shoal.v1.QueueService"
SCOPE = "admin"
log = logs.get("queue-service")
FRESH_S = 0.5
"""A look at the lanes answers everybody who asks within this time."""
LISTED_BY_DEFAULT = 100
PAGE_LETTERS = 64
LETTERS_AT_ONCE = 16
LAST_SEQUENCE = 2**64 - 1
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class QueueService(queue_pb2_grpc.QueueServiceServicer):
    """Asks the broker with a bounded number of calls; one request of each kind at a time, the rest wait."""

    def __init__(
        self, session: Session, models: KnownModels, lane_states: LaneStates, scheduler: str, auth: Auth
    ) -> None:
        self._session = session
        self._known = models
        self._lane_states = lane_states
        self._scheduler = scheduler
        self._auth = auth
        self._looking = asyncio.Lock()
        self._clearing = asyncio.Lock()
        self._lanes = queue_pb2.ListLanesResponse()
        self._looked_s = -FRESH_S

    async def ListLanes(
        self, request: queue_pb2.ListLanesRequest, context: grpc.aio.ServicerContext
    ) -> queue_pb2.ListLanesResponse:
        self._auth.require(SCOPE, context)
        async with self._looking:
            if time.monotonic() - self._looked_s >= FRESH_S:
                with _typed():
                    self._lanes = await self._look()
                self._looked_s = time.monotonic()
            return self._lanes

    async def ListDeadLetters(
        self, request: queue_pb2.ListDeadLettersRequest, context: grpc.aio.ServicerContext
    ) -> queue_pb2.ListDeadLettersResponse:
        self._auth.require(SCOPE, context)
        if request.limit > limits.DEAD_LETTERS_LISTED:
            raise errors.invalid_field("limit", f"is {request.limit}; at most {limits.DEAD_LETTERS_LISTED} are listed")
        _check_reason(request.reason)
        with _typed():
            page = await dead_letters.read(
                self._session,
                start=min(request.after_sequence + 1, LAST_SEQUENCE),
                count=request.limit or LISTED_BY_DEFAULT,
                reason=request.reason or dead_letters.ANY,
            )
        models = self._known.by_name().values()
        letters = [letter_message(letter, models) for letter in page.letters]
        return queue_pb2.ListDeadLettersResponse(letters=letters, remaining=page.remaining)

    async def RequeueDeadLetters(
        self, request: queue_pb2.RequeueDeadLettersRequest, context: grpc.aio.ServicerContext
    ) -> queue_pb2.RequeueDeadLettersResponse:
        self._auth.require(SCOPE, context)
        _check_chosen(request.sequences, request.reason, request.all)
        requeued = _Requeued(self._session, {model.lane.token for model in self._known.by_name().values()})
        async with self._clearing:
            with _typed():
                if request.sequences:
                    await together((requeued.named(each) for each in set(request.sequences)), LETTERS_AT_ONCE)
                else:
                    async for letters in self._pages(request.reason or dead_letters.ANY):
                        await together((requeued.add(letter) for letter in letters), LETTERS_AT_ONCE)
        return requeued.response()

    async def DropDeadLetters(
        self, request: queue_pb2.DropDeadLettersRequest, context: grpc.aio.ServicerContext
    ) -> queue_pb2.DropDeadLettersResponse:
        identity = self._auth.require(SCOPE, context)
        _check_chosen(request.sequences, request.reason, request.all)
        async with self._clearing:
            with _typed():
                if request.sequences:
                    response = await self._drop_named(sorted(set(request.sequences)))
                else:
                    dropped = await dead_letters.delete_all(self._session, request.reason or dead_letters.ANY)
                    response = queue_pb2.DropDeadLettersResponse(dropped=dropped)
        log.info("dead letters were dropped", letters=response.dropped, tenant=identity.tenant)
        return response

    async def _look(self) -> queue_pb2.ListLanesResponse:
        models = self._known.by_name()
        workers = await fleet.workers(self._scheduler)
        queues = await queue_survey.survey(self._session)
        oldest = await queue_survey.oldest_waiting(self._session, queues.values())
        letters = await dead_letters.counts(self._session)
        now_s = self._session.clock.now_s()
        return queue_pb2.ListLanesResponse(
            lanes=lane_messages(models, queues, oldest, self._lane_states, workers or (), now_s),
            dead_letters=[queue_pb2.DeadLetterCount(reason=r, letters=letters[r]) for r in sorted(letters)],
            scheduler_known=workers is not None and self._lane_states.known,
        )

    async def _pages(self, reason: str) -> AsyncIterator[Sequence[Letter]]:
        """The letters of a reason that are there now, page by page; none that comes meanwhile."""
        last = await dead_letters.last_sequence(self._session)
        start = 1
        while start <= last:
            page = await dead_letters.read(self._session, start=start, count=PAGE_LETTERS, reason=reason)
            yield [letter for letter in page.letters if letter.sequence <= last]
            if not page.remaining:
                return
            start = page.letters[-1].sequence + 1

    async def _drop_named(self, sequences: Sequence[int]) -> queue_pb2.DropDeadLettersResponse:
        dropped = await together((dead_letters.delete(self._session, each) for each in sequences), LETTERS_AT_ONCE)
        missing = [sequence for sequence, was_there in zip(sequences, dropped, strict=True) if not was_there]
        return queue_pb2.DropDeadLettersResponse(dropped=sum(dropped), not_found=missing)


class _Requeued:
    """Requeues letters, and counts what became of them."""

    def __init__(self, session: Session, served: Container[str]) -> None:
        """`served` are the tokens of the lanes that letters can go back to."""
        self._session = session
        self._served = served
        self._requeued = 0
        self._refused: dict[int, tuple[str, str]] = {}

    async def named(self, sequence: int) -> None:
        """Requeues the letter of a sequence, if there is one."""
        letter = await dead_letters.get(self._session, sequence)
        if letter is None:
            self._refused[sequence] = ("DEAD_LETTER_NOT_FOUND", "there is no such letter (any more)")
        else:
            await self.add(letter)

    async def add(self, letter: Letter) -> None:
        """Requeues a letter."""
        try:
            await requeueing.requeue(self._session, letter, self._served)
        except requeueing.Refused as refused:
            self._refused[letter.sequence] = (refused.reason, str(refused))
        else:
            self._requeued += 1

    def response(self) -> queue_pb2.RequeueDeadLettersResponse:
        """What to answer."""
        named = [
            queue_pb2.RequeueRefusal(sequence=sequence, reason=reason, message=message)
            for sequence, (reason, message) in sorted(self._refused.items())[: limits.DEAD_LETTERS_NAMED]
        ]
        return queue_pb2.RequeueDeadLettersResponse(requeued=self._requeued, refused=len(self._refused), refusals=named)


def _check_chosen(sequences: Sequence[int], reason: str, all_of_them: bool) -> None:
    """Raises CallError (INVALID_ARGUMENT) unless exactly one way of choosing letters was used, and rightly."""
    if sum((bool(sequences), bool(reason), all_of_them)) != 1:
        raise errors.invalid_field("sequences", "exactly one of sequences, reason and all says which letters")
    if len(sequences) > limits.DEAD_LETTERS_NAMED:
        raise errors.too_large("sequences", len(sequences), limits.DEAD_LETTERS_NAMED, "entries")
    if 0 in sequences:
        raise errors.invalid_field("sequences", "0 names no letter: they are counted from 1")
    _check_reason(reason)


def _check_reason(reason: str) -> None:
    if reason and not _REASON.fullmatch(reason):
        raise errors.invalid_field("reason", "is no reason: those are upper-case names such as DELIVERY_LIMIT")


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Ends the call as UNAVAILABLE when the broker does not answer, or refuses what it should not."""
    try:
        yield
    except (ApiError, BrokerTimeout) as error:
        log.warning("the broker did not answer for the queue", error=str(error))
        raise publishing.away() from None
