"""The reply subject: takes result messages, confirms each, and hands results to the requests that wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2
from nats.aio.msg import Msg

from shoal.work.v1 import work_pb2
from shoal_common import errors, lanes, limits, logs
from shoal_common.blob_removal import BlobRemoval
from shoal_common.blobs import RESULTS, BadReference, references
from shoal_common.nats_session import Session
from shoal_gateway.reassembly import Answer, WrongResults

log = logs.get("results")


class Waiting:
    """A request whose units are on their way: `done` holds None once its answer is complete, or an error."""

    def __init__(self, request_id: str, lane: str, model: str, answer: Answer) -> None:
        self.request_id = request_id
        self.lane = lane
        self.model = model
        self.answer = answer
        self.unit_ids = answer.open_units
        self.on_answer: Callable[[str], None] | None = None
        """Told the id of each unit that is answered; it may be told twice."""
        self.done: asyncio.Future[errors.CallError | None] = asyncio.get_running_loop().create_future()
        self.is_late = False
        """Whether it ended without an answer because its time was over."""

    def take(self, result: work_pb2.UnitResult) -> None:
        """A result of one of its units; none counts once it is done."""
        if self.done.done():
            return
        if result.error:
            self.fail(_reported(result))
            return
        try:
            complete = self.answer.add(result)
        except WrongResults as error:
            log.error("a worker sent wrong results", request_id=self.request_id, worker=result.worker, error=str(error))
            self.fail(errors.internal())
            return
        self._tell(result.unit_id)
        if complete:
            self.done.set_result(None)

    def give_up(self, unit_id: str, result: bytes) -> None:
        """One of its units, of one item, has the result that the gateway wrote."""
        if self.done.done():
            return
        complete = self.answer.give_up(unit_id, result)
        self._tell(unit_id)
        if complete:
            self.done.set_result(None)

    def expire(self) -> None:
        """Ends it, unless it has ended: its time is over."""
        if not self.done.done():
            self.is_late = True
            self.done.set_result(None)

    def _tell(self, unit_id: str) -> None:
        if self.on_answer is not None and not self.answer.is_open(unit_id):
            self.on_answer(unit_id)

    def fail(self, error: errors.CallError) -> None:
        """Ends it with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_result(error)


class Results:
    """The subscription on this gateway's reply subject, and who waits for which unit."""

    def __init__(self, session: Session, gateway: str, removal: BlobRemoval) -> None:
        self._session = session
        self._removal = removal
        self._by_unit: dict[str, Waiting] = {}
        self.subject = f"{lanes.RESULT_SUBJECT}.{gateway}"

    async def start(self) -> None:
        """Subscribes; the session renews it after each reconnect."""
        await self._session.subscribe(self.subject, self._on_message)

    def expect(self, waiting: Waiting) -> None:
        """From now on results of its units go to `waiting`."""
        for unit_id in waiting.unit_ids:
            self._by_unit[unit_id] = waiting

    def forget(self, waiting: Waiting) -> None:
        """Results of its units that still come are confirmed and dropped."""
        for unit_id in waiting.unit_ids:
            self._by_unit.pop(unit_id, None)

    def waiting_on(self, lane: str) -> list[Waiting]:
        """The requests with units on a lane."""
        return list({id(each): each for each in self._by_unit.values() if each.lane == lane}.values())

    async def _on_message(self, msg: Msg) -> None:
        try:
            self._take(msg.data)
        finally:
            # Confirmed whatever it held: a result that nobody knows here must not be sent again.
            if msg.reply:
                await self._session.send(msg.reply)

    def _take(self, message: bytes) -> None:
        try:
            batch = work_pb2.ResultBatch.FromString(message)
        except DecodeError:
            log.error("a result message is malformed", message_bytes=len(message))
            return
        for result in batch.results:
            waiting = self._by_unit.get(result.unit_id)
            if waiting is not None:
                waiting.take(result)
            elif result.blobs:
                self._remove(result)

    def _remove(self, result: work_pb2.UnitResult) -> None:
        """Nobody will read the blobs of a result that nobody waits for."""
        with contextlib.suppress(BadReference):
            blobs = references(RESULTS, result.unit_id, result.blobs, limits.REQUEST_ITEMS)
            self._removal.add(blob.key for blob in blobs)


def _reported(result: work_pb2.UnitResult) -> errors.CallError:
    """The error of a unit that failed as a whole."""
    try:
        status = status_pb2.Status.FromString(result.error)
    except DecodeError:
        status = status_pb2.Status()
    if status.code == code_pb2.OK or status.code not in code_pb2.Code.values():
        log.error("a worker sent a malformed status", unit_id=result.unit_id, worker=result.worker)
        return errors.internal()
    return errors.from_status(status)
