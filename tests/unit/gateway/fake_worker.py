"""A worker without a device: pulls a lane, answers each unit as the test says, and acks what was confirmed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from shoal.v1 import inference_pb2
from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits, queue_setup
from shoal_common.nats_session import ApiError, BrokerTimeout, Session

PULL_UNITS = 256
PULL_S = 0.5

Behaviour = Callable[[work_pb2.Unit], Sequence[work_pb2.UnitResult]]


def echo(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
    """Each text comes back as its own vector's bytes, so that a test sees which result belongs to which item."""
    return [whole(unit)]


def whole(unit: work_pb2.Unit, **fields: Any) -> work_pb2.UnitResult:
    """A unit's complete result."""
    values: dict[str, Any] = {
        "unit_id": unit.id,
        "last": True,
        "results": [item_result(item) for item in unit.items],
        "worker": "fake",
        "attempt": 1,
        "runtime": "sim",
        "device": "cpu",
    }
    return work_pb2.UnitResult(**(values | fields))


def item_result(raw: bytes) -> bytes:
    """What the sidecar would write for an item; a text of its own kind fails."""
    item = inference_pb2.Item.FromString(raw)
    result = inference_pb2.EncodeResult(id=item.id)
    if item.text == "bad":
        result.status.CopyFrom(inference_pb2.ItemStatus(code=3, message="a bad item", reason="ITEM_EMPTY"))
    else:
        result.dense.data = item.text.encode()
    return result.SerializeToString()


def silent(unit: work_pb2.Unit) -> list[work_pb2.UnitResult]:
    """Takes the unit and says nothing."""
    return []


class FakeWorker:
    """Serves both classes of a lane for as long as `run` runs."""

    def __init__(self, session: Session, lane: str, behaviour: Behaviour = echo) -> None:
        self._session = session
        self._lane = lane
        self.behaviour = behaviour
        self.units: list[work_pb2.Unit] = []
        self.messages: list[Msg] = []
        self.unconfirmed = 0

    async def run(self) -> None:
        """Serves for ever."""
        async with asyncio.TaskGroup() as tasks:
            for work_class in lanes.CLASSES.values():
                tasks.create_task(self._serve(work_class, tasks))

    async def _serve(self, work_class: str, tasks: asyncio.TaskGroup) -> None:
        stream = lanes.stream_name(lanes.shard_of(self._lane))
        while True:
            with contextlib.suppress(nats.errors.Error, TimeoutError, ApiError, BrokerTimeout):
                await queue_setup.ensure_consumers(self._session, self._lane)
                pull = await self._session.nc.jetstream().pull_subscribe_bind(
                    lanes.consumer_name(self._lane, work_class), stream
                )
                try:
                    while True:
                        for msg in await pull.fetch(PULL_UNITS, timeout=PULL_S):
                            tasks.create_task(self._answer(msg))
                finally:
                    await pull.unsubscribe()

    async def _answer(self, msg: Msg) -> None:
        unit = work_pb2.Unit.FromString(msg.data)
        self.units.append(unit)
        self.messages.append(msg)
        results = self.behaviour(unit)
        if results:
            await self.send(unit, results)
            await self._session.send(msg.reply)

    async def send(self, unit: work_pb2.Unit, results: Sequence[work_pb2.UnitResult]) -> None:
        """Sends results until the gateway has confirmed them."""
        batch = work_pb2.ResultBatch(results=results).SerializeToString()
        if not await self._session.confirmed(unit.reply_subject, batch, limits.RESULT_RETRY_S):
            self.unconfirmed += 1
