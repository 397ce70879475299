"""Put-backs: how a worker stands, what it has too much of, and what of that goes back to the queue."""

from __future__ import annotations

import random

import pytest

from shoal_common import limits
from shoal_common.profile import Cost, Tuned
from shoal_worker.decisions import pace, put_back
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.put_back import HOP_S, Surplus
from shoal_worker.decisions.unit import HeldUnit, Stage
from tests.unit.worker.units import DIGEST, unit

COST = Cost(batch_ms=4.0, token_us=100.0)
GPU = pace.GPU
OTHER = "e" * 64


def dispatch() -> Dispatch:
    made = Dispatch(1, GPU, random.Random(1), 0.0)
    made.serve({DIGEST: Tuned(cost=COST), OTHER: Tuned(cost=COST)}, {"lane": DIGEST, "other": OTHER})
    return made


def arrive(made: Dispatch, *units: HeldUnit) -> None:
    """Units of 20 tokens, that cost 2 ms each."""
    made.admitting(units, 0.0)
    for one in units:
        made.counted(one, one.items, one.tokens, one.squared_tokens)


def busy(made: Dispatch, tokens: int = 200) -> None:
    """A batch of that and its own cost runs: 24 ms."""
    arrive(made, unit(tokens=tokens))
    assert len(made.advance(0.0).batches) == 1


def test_an_idle_worker_takes_up_to_a_batch() -> None:
    standing = dispatch().standing(0.0)
    assert standing.free_in_ms == 0.0
    assert standing.room_ms == GPU.interactive_ms


def test_a_busy_worker_says_when_it_could_start_more() -> None:
    made = dispatch()
    busy(made)
    standing = made.standing(0.010)
    assert standing.free_in_ms == pytest.approx(14.0)
    assert standing.room_ms == GPU.interactive_ms
    arrive(made, unit())
    standing = made.standing(0.010)
    assert standing.free_in_ms == pytest.approx(16.0)
    assert standing.room_ms == pytest.approx(GPU.interactive_ms - 2.0)


def test_a_worker_whose_next_batch_is_there_or_coming_takes_nothing() -> None:
    made = dispatch()
    busy(made)
    arrive(made, *(unit() for _ in range(20)))
    assert len(made.advance(0.001).batches) == 1, "a full batch stands ready"
    standing = made.standing(0.001)
    assert standing.room_ms == 0.0
    assert standing.free_in_ms == pytest.approx(23.0 + 28.0 + 8 * 2.0), "one runs, one is next, eight units wait"
    drains = dispatch()
    busy(drains)
    assert drains.advance(0.022).pulls
    assert drains.standing(0.022).room_ms == 0.0


def test_a_batch_that_is_overdue_is_taken_to_need_as_long_again() -> None:
    made = dispatch()
    busy(made)
    assert made.device.free_in_ms(0.124) == 0.0
    assert made.standing(0.124).free_in_ms == pytest.approx(100.0)


def test_units_that_wait_for_a_running_batch_are_over_the_last_first() -> None:
    made = dispatch()
    busy(made)
    first, last = unit(deadline_s=1.0), unit(deadline_s=2.0)
    arrive(made, last, first)
    over = made.surplus(0.004)
    assert [one.unit for one in over] == [last, first]
    assert all(one.cost_ms == pytest.approx(2.0) and one.starts_in_ms == pytest.approx(20.0) for one in over)


def test_units_of_other_lanes_and_beyond_a_batch_start_after_what_goes_before() -> None:
    made = dispatch()
    busy(made)
    full = [unit(deadline_s=1.0) for _ in range(20)]  # 40 ms and two batches' own cost.
    other = unit(deadline_s=2.0, digest=OTHER)
    arrive(made, *full, other)
    starts_ms = [one.starts_in_ms for one in made.surplus(0.004)]
    assert made.surplus(0.004)[0].unit is other
    assert starts_ms[0] == pytest.approx(20.0 + 40.0 + 2 * 4.0)
    assert starts_ms[-1] == pytest.approx(20.0)
    assert starts_ms == sorted(starts_ms, reverse=True)


def test_what_is_about_to_start_is_not_worth_moving() -> None:
    made = dispatch()
    busy(made)
    arrive(made, unit())
    assert made.surplus(0.024 - GPU.pull_lead_ms / 1e3 + 0.0001) == []
    assert dispatch().surplus(0.0) == []


def test_a_granted_unit_is_run_as_it_is() -> None:
    made = dispatch()
    one = unit(tokens=20)
    made.granted(one)
    assert (one.stage, one.is_counted, one.cost_ms) == (Stage.READY, True, pytest.approx(2.0))
    [(_, batch)] = made.advance(0.0).batches
    assert batch.units == [one]


def test_a_unit_that_was_taken_is_not_run() -> None:
    made = dispatch()
    busy(made)
    arrive(made, one := unit(), other := unit())
    made.taken(one)
    assert one.stage is Stage.GONE
    assert [over.unit for over in made.surplus(0.001)] == [other]


def over(**fields) -> Surplus:
    starts_in_ms = fields.pop("starts_in_ms", 2 * GPU.interactive_ms)
    one = unit(**{"lane": "lane", "offered_s": 1.0, **fields})
    return Surplus(one, 2.0, starts_in_ms)


@pytest.mark.parametrize(
    ("fields", "goes"),
    [
        ({}, True),
        ({"lane": "busy everywhere"}, False),
        ({"starts_in_ms": GPU.interactive_ms}, False),
        ({"offered_s": None}, False),
        ({"offered_s": 2.0 - HOP_S / 2}, False),
        ({"put_backs": limits.PUT_BACKS - 1}, True),
        ({"put_backs": limits.PUT_BACKS}, False),
    ],
)
def test_units_go_to_the_queue_that_no_sibling_took_and_another_machine_would(fields: dict, goes: bool) -> None:
    one = over(**fields)
    assert put_back.to_queue([one], {"lane"}, GPU, now_s=2.0) == ([one.unit] if goes else [])
