"""One Infer stream: reads requests, works on a bounded number at once, and writes answers as they come."""

from __future__ import annotations

import asyncio

import grpc

from shoal_common import call_ends, errors, limits, request_ids
from shoal_common.request_ids import METADATA_KEY, request_id
from shoal_common.tokens import Identity
from shoal_gateway import call_metadata, deadlines, infer_messages, refusals
from shoal_gateway.auth import Auth, permitted
from shoal_gateway.dispatch import Caller, Dispatch
from shoal_gateway.infer_messages import InferRequest


class CallerGone(Exception):
    """An answer could not be written: nobody waits for the stream's other answers either."""


class InferStream:
    """Owns a stream and the tasks of its requests; they end with it."""

    def __init__(self, dispatch: Dispatch, auth: Auth, context: grpc.aio.ServicerContext) -> None:
        self._dispatch = dispatch
        self._auth = auth
        self._context = context
        metadata = call_metadata.read(context)
        self._asked_id = request_id(metadata.request_id) if metadata.request_id else None
        self._traceparent = metadata.traceparent
        self._authorization = metadata.authorization
        self._in_flight: set[bytes] = set()
        self._slots = asyncio.Semaphore(limits.INFER_IN_FLIGHT)
        self._writing = asyncio.Lock()
        self._received = 0
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    async def serve(self) -> None:
        """Returns when the caller has ended its side and every request is answered."""
        if self._asked_id:
            self._context.set_trailing_metadata(((METADATA_KEY, self._asked_id),))
        try:
            self._identity()
        except errors.CallError as error:
            await call_ends.abort(self._context, error, self._asked_id or request_ids.new())
        try:
            async with asyncio.TaskGroup() as tasks:
                self._reading = tasks.create_task(self._read(tasks))
        except ExceptionGroup as failures:
            if failures.split(CallerGone)[1] is not None:
                raise
            # What grpc does too, as soon as it has noticed.
            raise asyncio.CancelledError from None
        if self._stopping:
            await call_ends.abort(self._context, refusals.stopping(), self._asked_id or request_ids.new())

    def stop(self) -> None:
        """Takes no more requests; the stream ends once those that it has are answered."""
        self._stopping = True
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            # A request keeps its slot until its answer is written: a caller that doesn't read is not read on.
            await self._slots.acquire()
            raw = await self._context.read()
            if raw is grpc.aio.EOF:
                return
            size = len(raw)
            await self._dispatch.room.wait(size)
            task = tasks.create_task(self._answer(self._accept(raw)))
            # Not in the task: one that is cancelled before it begins gives nothing back.
            task.add_done_callback(lambda _, size=size: self._dispatch.room.give_back(size))

    def _accept(self, raw: bytes) -> InferRequest:
        request = infer_messages.parse(raw)
        if request.error is None and request.request_id in self._in_flight:
            twice = errors.invalid_field("request_id", "is in flight on this stream already", "REQUEST_ID_IN_FLIGHT")
            return request._replace(error=twice)
        if request.error is None:
            self._in_flight.add(request.request_id)
        return request

    async def _answer(self, request: InferRequest) -> None:
        try:
            answer = await self._answered(request)
            async with self._writing:
                await self._context.write(answer)
        except grpc.aio.InternalError:
            raise CallerGone from None
        finally:
            self._slots.release()

    async def _answered(self, request: InferRequest) -> bytes:
        name = self._name()
        if request.error is not None:
            return infer_messages.refused(request.request_id, request.error, name)
        budget_s = deadlines.budget_s(self._context.time_remaining(), request.deadline_ms)
        try:
            caller = Caller(name, budget_s, self._traceparent, self._identity())
            response = await self._dispatch.encode(request.encode, caller)
        except Exception as error:
            return infer_messages.refused(request.request_id, call_ends.typed(error, name), name)
        finally:
            self._in_flight.discard(request.request_id)
        return infer_messages.answered(request.request_id, response)

    def _identity(self) -> Identity:
        """Who calls; asked for each request, for a stream may outlive its token."""
        return permitted(self._auth.identify(self._authorization), "infer")

    def _name(self) -> str:
        """A request's name in errors and logs: the stream's, if it has one, and a number."""
        self._received += 1
        return f"{self._asked_id}.{self._received}" if self._asked_id else request_ids.new()
