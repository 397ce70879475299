"""What becomes of a message when it is pulled."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.unit_form import MALFORMED
from shoal_worker.decisions.unit import INTERACTIVE, Stage
from shoal_worker.delivery import Delivery, Pulled, parse
from shoal_worker.held import Held
from shoal_worker.intake import DELIVERY_LIMIT, Fate, Judgement, judge
from tests.unit.worker.units import unit

NOW_S = 1_000.0
BROKER_S = 1_700_000_000.0


def message(*, deliveries: int = 1, age_s: float = 0.1, ack: str = "ack", **fields) -> Pulled:
    values = {
        "id": "unit",
        "reply_subject": "shoal.result.a",
        "remaining_ms": 1_000,
        "work_class": work_pb2.WORK_CLASS_INTERACTIVE,
        "profile_digest": "d" * 64,
        "estimated_tokens": 20,
        "items": [b"item"],
        **fields,
    }
    delivery = Delivery(ack, "lane_interactive", deliveries, 7, BROKER_S - age_s, 0)
    return Pulled("lane", INTERACTIVE, work_pb2.Unit(**values).SerializeToString(), delivery, None)


def fate_of(pulled: Pulled, held: Held | None = None) -> Judgement:
    return judge(pulled, Held() if held is None else held, NOW_S, BROKER_S)


def test_a_unit_is_taken_with_its_deadline_on_our_clock() -> None:
    judgement = fate_of(message(age_s=0.4, items=[b"a", b"b"]))
    assert judgement.fate is Fate.TAKE
    one = judgement.unit
    assert one is not None
    assert one.deadline_s == pytest.approx(NOW_S + 0.6, abs=1e-5)
    assert (one.id, one.items, one.tokens, one.work_class, one.stage) == ("unit", 2, 20, INTERACTIVE, Stage.PARKED)


@pytest.mark.parametrize("data", [b"\xff\xff", b"", work_pb2.Unit(id="x").SerializeToString()])
def test_what_cannot_be_answered_is_dead(data: bytes) -> None:
    judgement = fate_of(message()._replace(data=data))
    assert (judgement.fate, judgement.reason, judgement.unit) == (Fate.DEAD, MALFORMED, None)


@pytest.mark.parametrize("subject", ["a b", "a\r\nPUB x 0", "a.*", "a.>", "ä"])
def test_a_reply_subject_that_is_none_is_dead(subject: str) -> None:
    assert fate_of(message(reply_subject=subject)).fate is Fate.DEAD


@pytest.mark.parametrize("lacking", [{"items": []}, {"profile_digest": ""}, {"work_class": None}])
def test_a_unit_that_lacks_what_it_needs_is_dead_and_answered(lacking: dict[str, Any]) -> None:
    judgement = fate_of(message(**lacking))
    assert (judgement.fate, judgement.reason) == (Fate.DEAD, MALFORMED)
    assert judgement.unit is not None and judgement.error is not None


def test_the_delivery_limit() -> None:
    assert fate_of(message(deliveries=limits.DELIVERY_LIMIT)).fate is Fate.TAKE
    judgement = fate_of(message(deliveries=limits.DELIVERY_LIMIT + 1))
    assert (judgement.fate, judgement.reason) == (Fate.DEAD, DELIVERY_LIMIT)
    assert judgement.error is not None and judgement.error.reason == DELIVERY_LIMIT


def test_an_expired_unit_is_acked() -> None:
    judgement = fate_of(message(age_s=1.0))
    assert (judgement.fate, judgement.reason) == (Fate.ACK, "expired")


def test_a_cancelled_unit_is_acked_until_the_tombstone_is_old() -> None:
    held = Held()
    assert held.cancel(["unit"], 5.0, NOW_S) == []
    assert fate_of(message(), held).reason == "cancelled"
    assert judge(message(), held, NOW_S + 5.0, BROKER_S).fate is Fate.TAKE


def test_a_unit_in_hand_gets_its_newer_ack_subject() -> None:
    held = Held()
    held.add(known := unit(id="unit", ack_subject="old"))
    assert fate_of(message(ack="new", deliveries=limits.DELIVERY_LIMIT + 1), held).fate is Fate.KNOWN
    assert known.ack_subject == "new"


def test_a_finished_unit_is_acked_again_for_a_while() -> None:
    held = Held()
    held.add(known := unit(id="unit"))
    held.finish(known, NOW_S)
    assert (len(held), known.stage) == (0, Stage.GONE)
    assert fate_of(message(), held).reason == "answered"
    later_s = NOW_S + limits.FINISHED_IDS_S
    held.forget_old(later_s, BROKER_S)
    assert judge(message(), held, later_s, BROKER_S).fate is Fate.TAKE


def test_older_units_of_a_silent_caller_are_acked_and_newer_ones_served() -> None:
    held = Held()
    held.caller_silent("shoal.result.a", BROKER_S - 0.2)
    assert fate_of(message(age_s=0.3), held).reason == "caller_silent"
    assert fate_of(message(age_s=0.1), held).fate is Fate.TAKE
    assert fate_of(message(age_s=0.3, reply_subject="shoal.result.b"), held).fate is Fate.TAKE
    held.forget_old(NOW_S, BROKER_S + 2 * limits.DEADLINE_MAX_S)
    assert not held.is_caller_silent("shoal.result.a", 0.0)


def test_only_units_that_no_batch_has_are_cancelled() -> None:
    held = Held()
    stages = {stage: unit(stage=stage) for stage in Stage}
    for one in stages.values():
        held.add(one)
    cancelled = held.cancel([one.id for one in stages.values()], 1.0, NOW_S)
    assert {Stage.PARKED, Stage.ADMITTING, Stage.READY} <= {one.stage for one in cancelled}
    assert not {Stage.RUNNING, Stage.ANSWERED, Stage.RETURNING} & {one.stage for one in cancelled}
    assert all(held.is_cancelled(one.id, NOW_S) for one in stages.values())


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.ACK.SHOAL_WORK_03.lane_bulk.2.17.5.1700000000500000000.9",
        "$JS.ACK.domain.hash.SHOAL_WORK_03.lane_bulk.2.17.5.1700000000500000000.9.random",
    ],
)
def test_ack_subjects_tell_of_their_delivery(subject: str) -> None:
    delivery = parse(subject)
    assert delivery == Delivery(subject, "lane_bulk", 2, 17, 1_700_000_000.5, 9)
    assert delivery.lane == "lane"


@pytest.mark.parametrize("subject", ["", "_INBOX.a.b", "$JS.ACK.a.b.c"])
def test_other_subjects_are_refused(subject: str) -> None:
    with pytest.raises(ValueError):
        parse(subject)
