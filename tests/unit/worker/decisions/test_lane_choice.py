"""What waits in lanes is guessed, and the one to drain next is chosen by it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from shoal_worker.decisions import lane_choice
from shoal_worker.decisions.drain_notes import HEARD_PER_S, PERIOD_S, QUIET, Loudness
from shoal_worker.decisions.lane_choice import CHOOSERS, NEWS_S, News
from shoal_worker.decisions.lane_guess import Guess

ALL_TOLD = News(drains_per_s=0.0, told=1.0)
DUE_S = 0.02


def lane(left: float = 0.0, since_s: float = 1.0, rate: float = 0.0) -> Guess:
    return Guess(left=left, since_s=since_s, rate=rate)


def drawn(lanes: dict[str, Guess], news: News = ALL_TOLD, now_s: float = 1.0, times: int = 400) -> Counter[str | None]:
    rng = random.Random(1)
    return Counter(lane_choice.best(lanes, news, DUE_S, now_s, rng) for _ in range(times))


def test_an_unknown_lane_is_believed_to_be_empty() -> None:
    assert Guess().fill(5.0) == 0.0
    assert Guess().age_s(5.0) == 0.0


def test_a_lane_fills_at_the_rate_at_which_it_filled_before() -> None:
    guess = Guess()
    guess.drained(taken=20, left=0, oldest_s=1.0, newest_s=1.01, now_s=1.01)  # 2,000 a second.
    assert guess.fill(1.015) == pytest.approx(10.0)
    assert guess.age_s(1.015) == pytest.approx(0.0045), "the first came about half a millisecond after the drain"
    guess.claimed(4, 1.015)
    assert guess.fill(1.015) == pytest.approx(6.0)
    guess.emptied(1.02)
    assert guess.fill(1.02) == 0.0


def test_what_a_drain_left_has_waited_since_the_last_that_it_took() -> None:
    guess = Guess()
    guess.drained(taken=10, left=5, oldest_s=1.0, newest_s=1.004, now_s=1.006)
    assert guess.left == 5
    assert guess.age_s(1.006) == pytest.approx(0.002)


def test_the_rate_follows_and_a_drain_of_no_age_tells_none() -> None:
    guess = Guess()
    for second in range(30):
        guess.drained(taken=10, left=0, oldest_s=second - 0.01, newest_s=float(second), now_s=float(second))
    assert guess.rate == pytest.approx(1_000.0)
    for second in range(30, 60):
        guess.drained(taken=1, left=0, oldest_s=second - 0.01, newest_s=float(second), now_s=float(second))
    assert guess.rate == pytest.approx(100.0, rel=0.01)
    guess.drained(taken=3, left=0, oldest_s=60.0, newest_s=60.0, now_s=60.0)
    assert guess.rate == pytest.approx(100.0, rel=0.01)


def test_a_peek_that_found_something_makes_an_empty_lane_due_in_time() -> None:
    guess = Guess()
    guess.seen(1.0)
    assert guess.fill(1.0) == 1.0 and guess.age_s(1.03) == pytest.approx(0.03)
    guess.seen(1.02)
    assert guess.age_s(1.03) == pytest.approx(0.03), "it is the same message, as far as is known"


def test_nothing_is_drained_where_nothing_is_believed_to_wait() -> None:
    assert drawn({"a": lane(), "b": lane(left=0.5)}) == {None: 400}
    assert drawn({"a": lane(), "b": lane(left=3)}) == {"b": 400}


def test_the_fullest_of_those_looked_at_goes_first() -> None:
    chosen = drawn({"a": lane(5), "b": lane(9), "c": lane(2), "d": lane(7)})
    assert chosen["b"] == pytest.approx(200, abs=40), "half of the lanes are looked at"
    assert chosen["c"] == 0
    assert chosen["b"] > chosen["d"] > chosen["a"]


def test_one_that_is_due_goes_before_a_fuller_one() -> None:
    lanes = {"full": lane(50), "old": lane(1, since_s=0.9), "older": lane(1, since_s=0.8), "c": lane(2)}
    chosen = drawn(lanes)
    assert chosen["older"] == pytest.approx(200, abs=40)
    assert chosen["old"] > chosen["full"]


def test_the_more_choose_at_once_the_more_is_left_to_chance() -> None:
    lanes = {name: lane(10 + number, rate=100.0) for number, name in enumerate("abcdefgh")}
    crowd = News(drains_per_s=2 * CHOOSERS / NEWS_S, told=1.0)
    assert drawn(lanes, crowd)["h"] == pytest.approx(400 * 2 / 8, abs=40), "two of eight are looked at"
    for news in (News(drains_per_s=100 * CHOOSERS / NEWS_S, told=1.0), News(drains_per_s=0.0, told=0.1)):
        assert all(count == pytest.approx(50, abs=25) for count in drawn(lanes, news).values())


def test_by_chance_lanes_go_by_their_share_of_the_demand() -> None:
    lanes = {"hot": lane(5, rate=900.0), "cold": lane(5, rate=100.0)}
    assert drawn(lanes, News(drains_per_s=0.0, told=0.1))["hot"] == pytest.approx(360, abs=30)


def test_by_chance_too_a_lane_that_is_due_has_its_turn() -> None:
    lanes = {**{name: lane(5, rate=1500.0) for name in "abcdefg"}, "rare": lane(1, since_s=0.1, rate=0.1)}
    assert drawn(lanes, News(drains_per_s=0.0, told=0.1))["rare"] == pytest.approx(400 / 9, abs=25)


def test_workers_tell_less_the_more_they_hear_and_all_again_when_it_is_quiet() -> None:
    loud = Loudness(random.Random(1))
    now_s = 0.0

    def hear(per_s: float, seconds: float) -> None:
        nonlocal now_s
        for _ in range(int(per_s * seconds)):
            now_s += 1 / per_s
            loud.heard(now_s)

    hear(HEARD_PER_S / 2, 2 * PERIOD_S)
    assert loud.news(now_s).told == 1.0 and loud.tells()
    hear(4 * HEARD_PER_S, PERIOD_S * 1.01)
    assert loud.news(now_s).told == pytest.approx(0.25, rel=0.05)
    assert sum(loud.tells() for _ in range(4_000)) == pytest.approx(1_000, rel=0.15)
    hear(HEARD_PER_S, PERIOD_S * 1.01)  # A quarter of them is told.
    assert loud.news(now_s).drains_per_s == pytest.approx(4 * HEARD_PER_S, rel=0.05)
    hear(HEARD_PER_S / 8, 10 * PERIOD_S)
    assert loud.news(now_s).told == 1.0
    hear(4 * HEARD_PER_S, PERIOD_S * 1.01)
    assert loud.news(now_s + 2 * PERIOD_S).told < 1.0, "those of the last period"
    assert loud.news(now_s + 4 * PERIOD_S) == QUIET, "the siblings are gone"
