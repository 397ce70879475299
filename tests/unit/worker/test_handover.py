"""What becomes of a unit that the sidecar grants, takes or denies, whatever this worker knows of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shoal.sidecar.v1 import sidecar_pb2
from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.broker_clock import BrokerClock
from shoal_worker import intake
from shoal_worker.acks import IN_PROGRESS, Acks
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.unit import INTERACTIVE, HeldUnit, Stage
from shoal_worker.handover import Handover
from shoal_worker.held import Held
from shoal_worker.outbox import Outbox
from tests.unit.worker.units import DIGEST, unit

BROKER_S = 1_700_000_000.0
NOW_S = 1_000.0


def ack_subject(age_s: float = 0.1, deliveries: int = 1) -> str:
    published_ns = int((BROKER_S - age_s) * 1e9)
    return f"$JS.ACK.SHOAL_WORK_03.lane_interactive.{deliveries}.17.5.{published_ns}.9"


def grant(unit_id: str = "unit", age_s: float = 0.1, deliveries: int = 1, **fields) -> sidecar_pb2.GrantedUnit:
    header = work_pb2.Unit(
        id=unit_id,
        reply_subject="shoal.result.a",
        remaining_ms=10_000,
        work_class=work_pb2.WORK_CLASS_INTERACTIVE,
        profile_digest=DIGEST,
        estimated_tokens=20,
        put_backs=2,
    )
    values = {
        "header": header.SerializeToString(),
        "ack_subject": ack_subject(age_s, deliveries),
        "deliveries": deliveries,
        "items": 3,
        "tokens": 70,
        "squared_tokens": 1_700,
        "from": "sibling",
        **fields,
    }
    return sidecar_pb2.GrantedUnit(**values)


def read(granted: sidecar_pb2.GrantedUnit) -> HeldUnit:
    one = intake.granted(granted, NOW_S, BROKER_S)
    assert one is not None
    return one


def test_a_granted_unit_is_known_by_its_header_and_its_ack_subject() -> None:
    one = read(grant(age_s=0.4, deliveries=2, traceparent="00-a-b-01"))
    assert (one.id, one.lane, one.work_class, one.profile_digest) == ("unit", "lane", INTERACTIVE, DIGEST)
    assert (one.items, one.tokens, one.squared_tokens, one.is_counted) == (3, 70, 1_700, True)
    assert (one.estimated_tokens, one.put_backs, one.deliveries, one.payload) == (20, 2, 2, b"")
    assert (one.ack_subject, one.traceparent) == (ack_subject(0.4, 2), "00-a-b-01")
    assert one.deadline_s == pytest.approx(NOW_S + 9.6, abs=1e-5)
    assert one.pulled_s == pytest.approx(NOW_S - 0.4, abs=1e-5), "nothing tells when it was pulled"


@pytest.mark.parametrize("wrong", [{"header": b"\xff"}, {"header": b""}, {"ack_subject": "x"}, {"ack_subject": ""}])
def test_a_grant_that_cannot_be_read_is_none(wrong: dict[str, Any]) -> None:
    assert intake.granted(grant(**wrong), NOW_S, BROKER_S) is None


class Desk:
    """A handover with what it acts on."""

    def __init__(self) -> None:
        self.held = Held()
        self.messages: list[tuple[str, bytes]] = []
        self.released: list[str] = []
        self.over: list[tuple[str, str]] = []
        self.left: list[str] = []
        self.handover = Handover(
            "here",
            cast(BrokerClock, self),
            self.held,
            cast(Dispatch, self),
            Acks(cast(Outbox, self), self.held),
            self.released.extend,
            lambda units, reason: self.over.extend((one.id, reason) for one in units),
        )

    def now_s(self) -> float:
        return BROKER_S

    def put(self, subject: str, payload: bytes) -> None:
        self.messages.append((subject, payload))

    def taken(self, one: HeldUnit) -> None:
        self.left.append(one.id)

    def grant(self, *grants: sidecar_pb2.GrantedUnit) -> list[str]:
        """Hands a grant over; the ids of what is to be run."""
        return [one.id for one in self.handover.granted(sidecar_pb2.Granted(number=1, units=grants))]

    def holds(self, stage: Stage, **fields) -> HeldUnit:
        """Has a unit of the granted id in hand."""
        self.held.add(known := unit(id="unit", stage=stage, ack_subject="older", **fields))
        return known


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr("shoal_worker.handover.time.monotonic", lambda: NOW_S)
    return Desk()


def test_granted_units_are_in_hand_in_their_order(desk: Desk) -> None:
    assert desk.grant(grant("b"), grant("a")) == ["b", "a"]
    assert [one.id for one in desk.held] == ["b", "a"]
    assert not desk.messages, "they are young: the broker is not told"


def test_an_old_unit_is_said_to_be_worked_on_at_once(desk: Desk) -> None:
    age_s = limits.IN_PROGRESS_PERIOD_S + 0.1
    assert desk.grant(grant(age_s=age_s)) == ["unit"]
    assert desk.messages == [(ack_subject(age_s), IN_PROGRESS)]


def test_what_nobody_waits_for_is_released_and_acked(desk: Desk) -> None:
    desk.held.cancel(["cancelled"], 30.0, NOW_S)
    desk.held.finish(unit(id="answered"), NOW_S)
    assert desk.grant(grant("cancelled"), grant("answered"), grant("late", age_s=10.0), grant("wanted")) == ["wanted"]
    assert desk.released == ["cancelled", "answered", "late"]
    assert desk.over == [("cancelled", "cancelled"), ("answered", "answered"), ("late", "expired")]


def test_units_of_a_caller_that_is_gone_are_released(desk: Desk) -> None:
    desk.held.caller_silent("shoal.result.a", BROKER_S)
    assert desk.grant(grant()) == []
    assert desk.over == [("unit", "caller_silent")]


@pytest.mark.parametrize("stage", [Stage.ADMITTING, Stage.PARKED])
def test_a_unit_that_was_pulled_meanwhile_goes_its_way(desk: Desk, stage: Stage) -> None:
    known = desk.holds(stage, deliveries=2)
    assert desk.grant(grant()) == []
    assert (known.stage, known.ack_subject) == (stage, "older"), "the answer to Admit is on its way"
    assert not desk.released


@pytest.mark.parametrize("stage", [Stage.ANSWERED, Stage.RETURNING])
def test_a_unit_that_is_done_with_here_is_released_and_acked_by_its_newest_subject(desk: Desk, stage: Stage) -> None:
    known = desk.holds(stage)
    assert desk.grant(grant(deliveries=2)) == []
    assert desk.released == ["unit"]
    assert known.ack_subject == ack_subject(deliveries=2)


@pytest.mark.parametrize("stage", [Stage.READY, Stage.RUNNING, Stage.ADMITTING, Stage.RETURNING])
def test_a_taken_unit_is_left_without_an_ack(desk: Desk, stage: Stage) -> None:
    known = desk.holds(stage)
    desk.handover.taken(sidecar_pb2.Taken(unit_ids=["unit", "unknown"], by="sibling"))
    assert (desk.left, len(desk.held), known.stage) == (["unit"], 0, Stage.GONE)
    assert not desk.over
    assert not desk.messages


@pytest.mark.parametrize("stage", [Stage.READY, Stage.RETURNING])
def test_a_waiting_unit_that_is_anothers_is_left(desk: Desk, stage: Stage) -> None:
    desk.holds(stage)
    desk.handover.not_owned(sidecar_pb2.NotOwned(unit_ids=["unit", "unknown"]))
    assert (desk.left, len(desk.held)) == (["unit"], 0)


@pytest.mark.parametrize("stage", [Stage.RUNNING, Stage.ANSWERED, Stage.ADMITTING])
def test_a_unit_that_moved_on_since_it_was_offered_stays(desk: Desk, stage: Stage) -> None:
    desk.holds(stage)
    desk.handover.not_owned(sidecar_pb2.NotOwned(unit_ids=["unit"]))
    assert (desk.left, len(desk.held)) == ([], 1)


def test_an_answered_unit_is_kept_for_its_ack(desk: Desk) -> None:
    desk.holds(Stage.ANSWERED)
    desk.handover.taken(sidecar_pb2.Taken(unit_ids=["unit"], by="sibling"))
    assert (desk.left, len(desk.held)) == ([], 1)
