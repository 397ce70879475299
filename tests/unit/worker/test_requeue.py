"""A unit on its way back to the queue: published anew, dropped, or run here after all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from shoal.sidecar.v1 import sidecar_pb2
from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_worker.acks import ACK, IN_PROGRESS, Acks
from shoal_worker.attach import Attach
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.unit import BULK, HeldUnit, Stage
from shoal_worker.held import Held
from shoal_worker.outbox import Outbox
from shoal_worker.requeue import Requeue
from tests.support.until import until
from tests.unit.worker.units import unit

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Desk:
    """What a requeue acts on."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.asked: list[str] = []
        self.published: list[tuple[str, work_pb2.Unit, dict[str, Any]]] = []
        self.messages: list[tuple[str, bytes]] = []
        self.over: list[tuple[str, str]] = []
        self.here: list[HeldUnit] = []
        self.fault: Exception | None = None
        self.while_publishing = lambda: None
        self.held = Held()
        acks = Acks(cast(Outbox, self), self.held)
        self.requeue = Requeue(
            cast(Session, self),
            cast(Attach, self),
            self.held,
            cast(Dispatch, self),
            acks,
            group,
            self.here.append,
            lambda units, reason: self.over.extend((one.id, reason) for one in units),
            lambda: None,
        )

    def send(self, request: sidecar_pb2.AttachRequest) -> None:
        self.asked.extend(request.return_units.unit_ids)

    def put(self, subject: str, payload: bytes) -> None:
        self.messages.append((subject, payload))

    def leave(self, one: HeldUnit, stage: Stage) -> None:
        one.stage = stage

    async def publish(self, subject: str, payload: bytes, **options: Any) -> int:
        self.published.append((subject, work_pb2.Unit.FromString(payload), options))
        self.while_publishing()
        if self.fault is not None:
            raise self.fault
        return 1

    def start(self, **fields: Any) -> HeldUnit:
        """Asks for a unit."""
        values = {"stage": Stage.READY, "deadline_s": time.monotonic() + 5.0, "is_counted": True, **fields}
        self.held.add(one := unit(id="unit", **values))
        self.requeue.start([one])
        return one

    def returned(self) -> None:
        """The sidecar gives it."""
        whole = work_pb2.Unit(id="unit", put_backs=1, remaining_ms=30_000, items=[b"item"]).SerializeToString()
        self.requeue.returned(sidecar_pb2.Returned(units=[sidecar_pb2.ReturnedUnit(unit=whole)]))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with asyncio.TaskGroup() as group:
        yield Desk(group)


async def test_it_is_published_with_its_deadline_then_acked(desk: Desk) -> None:
    one = desk.start(work_class=BULK, traceparent=TRACEPARENT)
    assert (desk.asked, one.stage, desk.held.get("unit")) == (["unit"], Stage.RETURNING, one)
    assert not desk.requeue.is_idle
    desk.returned()
    assert desk.held.get("unit") is None, "what comes with its id now is the next copy"
    assert not desk.messages
    await until(lambda: desk.requeue.is_idle)
    [(subject, message, options)] = desk.published
    assert subject == lanes.work_subject("lane", BULK)
    assert (message.put_backs, list(message.items)) == (2, [b"item"])
    assert 4_000 < message.remaining_ms <= 5_000
    assert options["msg_id"] == "unit/2"
    assert options["headers"] == {"traceparent": TRACEPARENT}
    assert desk.messages == [(one.ack_subject, ACK)]


async def test_one_that_was_cancelled_on_the_way_is_dropped(desk: Desk) -> None:
    desk.start()
    assert desk.held.cancel(["unit"], 30.0, time.monotonic()) == [], "it is dropped when it comes"
    desk.returned()
    assert (desk.over, desk.published, len(desk.held)) == ([("unit", "cancelled")], [], 0)


async def test_one_that_expired_on_the_way_is_dropped(desk: Desk) -> None:
    desk.start(deadline_s=time.monotonic() - 0.1)
    desk.returned()
    assert (desk.over, desk.published) == ([("unit", "expired")], [])


@pytest.mark.parametrize(
    "fault", [BrokerTimeout("late"), ApiError(503, 10077, "maximum messages per subject exceeded")]
)
async def test_one_that_the_queue_does_not_take_runs_here(desk: Desk, fault: Exception) -> None:
    desk.fault = fault
    one = desk.start()
    desk.returned()
    await until(lambda: desk.requeue.is_idle)
    assert desk.here == [one]
    assert (desk.held.get("unit"), one.stage, one.is_counted) == (one, Stage.PARKED, False)
    assert work_pb2.Unit.FromString(one.payload).put_backs == 1
    assert one.put_backs == limits.PUT_BACKS, "it is not tried again"
    assert desk.messages == [(one.ack_subject, IN_PROGRESS)]


async def test_a_copy_that_was_stored_unheard_and_came_back_here_is_enough(desk: Desk) -> None:
    desk.fault = BrokerTimeout("late")
    one = desk.start()
    desk.while_publishing = lambda: desk.held.add(unit(id="unit", ack_subject="of the next copy"))
    desk.returned()
    await until(lambda: desk.requeue.is_idle)
    assert not desk.here
    assert desk.messages == [(one.ack_subject, ACK)]


async def test_what_comes_late_from_a_former_stream_is_nobodys(desk: Desk) -> None:
    one = desk.start()
    desk.held.remove(one)
    desk.returned()
    assert not desk.published
    assert not desk.messages
