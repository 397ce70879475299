"""A lane's window between tenants: shares kept, nobody starved, bounded, and nothing left behind."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_gateway.fair_share import CONTESTED_S, FairShare, Place

WINDOW = 100.0
CONTESTED = WINDOW / 3


def nothing() -> None:
    """Nobody is woken."""


def enter(lane: FairShare, tenant: str, *costs: float, weight: float = 1.0) -> Place:
    return lane.enter(tenant, weight, costs, nothing)


def test_a_tenant_alone_has_the_whole_window() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    places = [enter(lane, "a", 25.0) for _ in range(6)]
    assert [place.admitted for place in places] == [1, 1, 1, 1, 0, 0]
    assert (lane.total, lane.waiting_cost("a"), lane.share("a", 1.0)) == (100.0, 50.0, 1.0)
    lane.answered(places[0], 0)
    assert [place.admitted for place in places] == [1, 1, 1, 1, 1, 0], "in order, as results come"
    lane.leave(places[1])
    assert [place.admitted for place in places] == [1, 1, 1, 1, 1, 1]


def contested(lane: FairShare) -> None:
    """One tenant has flooded the lane beside another."""
    for place in [*(enter(lane, "one", WINDOW) for _ in range(2)), enter(lane, "another", 1.0)]:
        lane.leave(place)


def test_tenants_that_meet_use_a_part_of_the_window_for_a_while() -> None:
    now_s = 100.0
    lane = FairShare(WINDOW, CONTESTED, lambda: now_s)
    flood = [enter(lane, "flood", 10.0) for _ in range(20)]
    quiet = enter(lane, "quiet", 10.0)
    assert lane.usable == CONTESTED
    lane.leave(quiet)
    while lane.total > 0 and lane.waiting_cost("flood") == 100.0:
        lane.leave(next(place for place in flood if place.outstanding_cost))
    assert lane.total == 40.0, "the first that goes finds room, and fills it"
    now_s += CONTESTED_S
    lane.set_window(WINDOW, CONTESTED)
    assert lane.total == 100.0


def test_where_every_tenant_is_held_back_the_whole_window_is_used() -> None:
    now_s = 100.0
    lane = FairShare(WINDOW, CONTESTED, lambda: now_s)
    places = [enter(lane, tenant, 10.0) for _ in range(20) for tenant in ("one", "another")]
    assert lane.usable == CONTESTED
    now_s += CONTESTED_S
    lane.leave(places[0])
    assert (lane.usable, lane.total) == (WINDOW, 100.0)
    quiet = enter(lane, "quiet", 1.0)
    assert lane.usable == CONTESTED and quiet.admitted == 1


def test_a_tenant_below_its_share_passes_a_full_window() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    contested(lane)
    flood = [enter(lane, "flood", 5.0) for _ in range(20)]
    assert sum(place.admitted for place in flood) == 7
    quiet = [enter(lane, "quiet", 5.0) for _ in range(10)]
    assert sum(place.admitted for place in quiet) == 6, "as much as the flood had, and no more"
    for place in flood[:6]:
        lane.answered(place, 0)
    assert sum(place.admitted for place in (*flood, *quiet)) == 13, "the flood makes room first"
    for place in quiet[:4]:
        lane.answered(place, 0)
    admitted = [sum(place.admitted for place in places) for places in (flood, quiet)]
    assert admitted in ([9, 8], [8, 9]), "from then on by turns"


def test_a_tenant_that_comes_and_goes_gets_no_more_than_its_share() -> None:
    drain = Drain()
    answered = {"flood": 0.0, "guest": 0.0}
    for _ in range(300):
        while drain.lane.waiting_cost("flood") < 200.0:
            drain.enter("flood", 1.0, [5.0])
        guests = [drain.enter("guest", 1.0, [5.0]) for _ in range(20)]
        while any(place.outstanding_cost or place.waiting_cost for place in guests):
            tenant, cost = drain.answer()
            answered[tenant] += cost
        for place in guests:
            drain.lane.leave(place)
    assert answered["guest"] == pytest.approx(answered["flood"], rel=0.1)


def test_a_large_unit_of_a_tenant_that_had_no_more_than_others_goes_at_once() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    for _ in range(20):
        enter(lane, "flood", 10.0)
    first = enter(lane, "quiet", 60.0)
    assert first.admitted == 1
    lane.leave(first)
    assert enter(lane, "quiet", 60.0).admitted == 0, "now it had"


def test_weights_are_shares() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    contested(lane)
    for _ in range(100):
        enter(lane, "flood", 1.0, weight=1.0)
    heavy = [enter(lane, "heavy", 1.0, weight=2.0) for _ in range(100)]
    assert sum(place.admitted for place in heavy) == 66, "two for each of the other's"
    assert lane.share("heavy", 2.0) == 2 / 3 and lane.share("third", 3.0) == 0.5


def test_a_new_weight_counts_at_once() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    enter(lane, "a", 10.0, weight=1.0)
    enter(lane, "b", 10.0, weight=1.0)
    enter(lane, "a", 10.0, weight=3.0)
    assert lane.share("a", 3.0) == 0.75


def test_a_request_larger_than_the_window_goes_in_pieces() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    woken: list[int] = []
    place = lane.enter("a", 1.0, [60.0] * 5, lambda: woken.append(place.admitted))
    assert place.admitted == 2, "while there is room, even if the last unit is larger"
    for index in range(5):
        lane.answered(place, index)
    assert (place.admitted, woken) == (5, [3, 4, 5])
    lane.leave(place)
    assert lane.is_empty and lane.total == 0


def test_a_unit_larger_than_the_window_goes_when_others_are_done() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    first = enter(lane, "a", 100.0)
    large = enter(lane, "a", 1000.0)
    next_one = enter(lane, "a", 10.0)
    assert large.admitted == 0
    lane.leave(first)
    assert large.admitted == 1 and next_one.admitted == 0
    lane.leave(large)
    assert next_one.admitted == 1


def test_one_that_leaves_gives_up_its_place() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    running = enter(lane, "a", 100.0)
    first, second = enter(lane, "a", 10.0), enter(lane, "a", 20.0)
    lane.leave(first)
    assert lane.waiting_cost("a") == 20.0
    lane.leave(second)
    third = enter(lane, "a", 30.0)
    lane.answered(running, 0)
    assert third.admitted == 1, "what has left keeps nobody waiting"
    lane.answered(first, 0)
    assert lane.total == 30.0, "no word of it counts"


def test_a_wider_window_is_filled_and_an_open_lane_holds_nobody() -> None:
    lane = FairShare(WINDOW, CONTESTED)
    places = [enter(lane, "a", 50.0) for _ in range(10)]
    lane.set_window(200.0, 100.0)
    assert sum(place.admitted for place in places) == 4
    lane.open()
    assert sum(place.admitted for place in places) == 10 and lane.waiting_cost("a") == 0


class Drain:
    """A lane that answers units in the order in which they were published."""

    def __init__(self) -> None:
        self.lane = FairShare(WINDOW, CONTESTED)
        self.published: deque[tuple[str, Place, int, float]] = deque()
        self.places: list[Place] = []

    def enter(self, tenant: str, weight: float, costs: list[float]) -> Place:
        seen = 0

        def publish() -> None:
            nonlocal seen
            while seen < place.admitted:
                self.published.append((tenant, place, seen, costs[seen]))
                seen += 1

        place = self.lane.enter(tenant, weight, costs, lambda: publish())
        publish()
        self.places.append(place)
        return place

    def answer(self) -> tuple[str, float]:
        tenant, place, index, cost = self.published.popleft()
        self.lane.answered(place, index)
        return tenant, cost


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=6),
    st.lists(st.floats(1.0, 60.0), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
@settings(deadline=None)
def test_tenants_that_always_wait_get_their_shares(weights: list[float], costs: list[float], seed: int) -> None:
    rng = random.Random(seed)
    drain = Drain()
    got = dict.fromkeys(range(len(weights)), 0.0)

    def refill() -> None:
        for tenant, weight in enumerate(weights):
            while drain.lane.waiting_cost(str(tenant)) < 200.0:
                drain.enter(str(tenant), weight, [rng.choice(costs)])

    refill()
    total = 0.0
    while total < 5_000.0:
        tenant, cost = drain.answer()
        got[int(tenant)] += cost
        total += cost
        refill()
    for tenant, weight in enumerate(weights):
        expected = total * weight / sum(weights)
        # What one tenant may be ahead of another is bounded by its largest unit and the windows that lie between.
        assert got[tenant] == pytest.approx(expected, abs=4 * WINDOW), (weights, got)


@given(st.floats(1.0, 90.0), st.integers(1, 30), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_quiet_tenant_never_waits_longer_than_the_window(cost: float, flooders: int, seed: int) -> None:
    rng = random.Random(seed)
    drain = Drain()
    for _ in range(30):
        for flooder in range(flooders):
            while drain.lane.waiting_cost(f"f{flooder}") < 200.0:
                drain.enter(f"f{flooder}", 1.0, [rng.uniform(1.0, 90.0)])
        quiet = drain.enter("quiet", 1.0, [cost])
        before = 0.0
        while True:
            tenant, spent = drain.answer()
            if tenant == "quiet":
                break
            before += spent
        drain.lane.leave(quiet)
        # Twice the window may lie before it, and of each other tenant a unit by credit and one in the order.
        assert before <= 2 * WINDOW + 2 * 90.0 * (flooders + 1)


Step = st.tuples(st.sampled_from(["enter", "answer", "again", "leave", "window"]), st.integers(0, 2**16))


@given(st.lists(Step, max_size=120), st.integers(0, 2**32))
@settings(deadline=None, max_examples=300)
def test_whatever_happens_the_window_holds_and_nothing_is_left(steps: list[tuple[str, int]], seed: int) -> None:
    rng = random.Random(seed)
    lane = FairShare(WINDOW, CONTESTED)
    weights = {"a": 1.0, "b": 2.5, "c": 0.1, "d": 1.0}
    open_places: list[tuple[str, Place, list[float], set[int]]] = []
    largest, widest = 0.0, WINDOW

    def check() -> None:
        outstanding, waiting = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
        for tenant, place, costs, answered in open_places:
            outstanding[tenant] += sum(cost for i, cost in enumerate(costs[: place.admitted]) if i not in answered)
            waiting[tenant] += sum(costs[place.admitted :])
        total = sum(outstanding.values())
        assert lane.total == pytest.approx(total)
        assert total <= 2 * widest + largest + 1e-6
        for tenant in weights:
            assert lane.waiting_cost(tenant) == pytest.approx(waiting[tenant], abs=1e-6)
        if any(wait > 1e-6 for wait in waiting.values()):
            assert lane.total >= lane.usable, "nobody waits while there is room"
        assert lane.is_empty == (not open_places)

    for what, number in steps:
        if what == "enter":
            tenant = rng.choice(list(weights))
            costs = [rng.uniform(0.1, 150.0) for _ in range(1 + number % 5)]
            largest = max(largest, *costs)
            open_places.append((tenant, lane.enter(tenant, weights[tenant], costs, nothing), costs, set()))
        elif what == "window":
            lane.set_window(WINDOW * (1 + number % 3), CONTESTED * (1 + number % 2))
            widest = max(widest, lane.window)
        elif open_places:
            at = number % len(open_places)
            _, place, costs, answered = open_places[at]
            if what == "leave":
                lane.leave(place)
                lane.answered(place, 0)
                del open_places[at]
            elif place.admitted:
                index = rng.randrange(place.admitted)
                lane.answered(place, index)
                answered.add(index)
                if what == "again":
                    lane.answered(place, index)
        check()
    while open_places:
        lane.leave(open_places.pop()[1])
        check()
    assert lane.total == 0 and lane.share("e", 3.0) == 1.0
