"""The decisions together, driven by a clock of the test's own."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from shoal_common.profile import Cost, Tuned
from shoal_worker.decisions import batching, pace
from shoal_worker.decisions.batching import Batch
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.pull_plan import Kind, Order
from shoal_worker.decisions.unit import BULK, INTERACTIVE, HeldUnit, Stage
from tests.unit.worker.units import DIGEST, unit

INTERACTIVE_MS, BULK_MS = pace.CPU.interactive_ms, pace.CPU.bulk_ms
SEED = Cost(batch_ms=3.0, token_us=100.0)


def dispatch(streams: int = 1, seed: Cost = SEED) -> Dispatch:
    made = Dispatch(streams, pace.CPU, random.Random(1), 0.0)
    made.serve({DIGEST: Tuned(cost=seed)}, {"lane": DIGEST})
    return made


def arrive(made: Dispatch, one: HeldUnit) -> None:
    """A unit is admitted and counted at once."""
    made.admitting([one], 0.0)
    made.counted(one, one.items, one.tokens, one.squared_tokens)


def drains(orders: list[Order]) -> list[Order]:
    return [order for order in orders if order.kind is Kind.DRAIN]


def test_before_it_serves_anything_there_is_nothing_to_do() -> None:
    steps = Dispatch(1, pace.GPU, random.Random(1), 0.0).advance(0.0)
    assert not steps.batches and not steps.pulls


def test_an_idle_worker_waits_on_every_lane() -> None:
    steps = dispatch().advance(0.0)
    assert {order.work_class for order in steps.pulls} == {INTERACTIVE, BULK}
    assert all(order.waits for order in steps.pulls)
    assert steps.wake_in_s is None


def test_a_lone_unit_starts_at_once() -> None:
    made = dispatch()
    made.advance(0.0)
    arrive(made, one := unit())
    [(_, batch)] = made.advance(0.0).batches
    assert batch.units == [one]


def test_a_unit_alone_on_an_idle_device_is_not_counted_first() -> None:
    made = dispatch()
    made.admitting([one := unit(tokens=10)], 0.0)
    [(batch_id, batch)] = made.advance(0.0).batches
    assert batch.units == [one] and batch.predicted_ms == pytest.approx(4.0)
    made.counted(one, 1, 50, 2500)
    assert batch.predicted_ms == pytest.approx(8.0) and batch.tokens == 50
    assert made.device.free_in_ms(0.0) == pytest.approx(8.0)
    assert made.finished(batch_id, 8.0, 0.008) is batch


def test_several_units_or_a_busy_device_wait_for_their_counts() -> None:
    made = dispatch()
    made.admitting([unit(), unit()], 0.0)
    assert not made.advance(0.0).batches
    made = dispatch()
    arrive(made, unit())
    made.advance(0.0)
    made.admitting([late := unit()], 0.0)
    assert not made.advance(0.0).batches and late.stage is Stage.ADMITTING


def test_a_lane_that_has_more_is_drained_for_a_whole_batch() -> None:
    made = dispatch()
    made.advance(0.0)
    made.plan.delivered("lane", INTERACTIVE, True, 500, 0.0)
    arrive(made, unit())
    steps = made.advance(0.0)
    assert len(steps.batches) == 1
    [order] = steps.pulls
    assert (order.work_class, order.waits) == (INTERACTIVE, False)
    assert order.batch == pytest.approx((INTERACTIVE_MS - 3.0) / 2.0, abs=1.5)


def test_a_busy_worker_has_no_pull_waiting_and_pulls_just_in_time() -> None:
    made = dispatch()
    arrive(made, unit(tokens=1_000))  # 103 ms.
    steps = made.advance(0.0)
    assert len(steps.batches) == 1
    assert steps.pulls == []
    assert steps.wake_in_s == pytest.approx(0.083)
    [order] = drains(made.advance(0.084).pulls)
    assert order.lane == "lane"


def test_a_batch_that_may_grow_is_sent_just_before_a_stream_is_free() -> None:
    made = dispatch()
    arrive(made, unit(tokens=1_000))
    made.advance(0.0)
    arrive(made, unit())
    assert made.advance(0.01).batches == []
    [order] = drains(made.advance(0.095).pulls)
    arrive(made, unit())
    made.plan.ended(order.pull_id, empty=True, now_s=0.096)
    [(_, batch)] = made.advance(0.099).batches
    assert len(batch.units) == 2


def test_a_full_batch_stands_ready_early_and_only_one() -> None:
    made = dispatch()
    arrive(made, unit(tokens=1_000))
    made.advance(0.0)
    for _ in range(100):
        arrive(made, unit())
    assert len(made.advance(0.001).batches) == 1
    assert made.advance(0.002).batches == []


def test_a_batch_goes_back_when_it_is_refused() -> None:
    made = dispatch()
    arrive(made, one := unit())
    [(batch_id, _)] = made.advance(0.0).batches
    batch = made.refused(batch_id, 0.001)
    assert batch is not None
    made.return_unit(one)
    assert [batch.units for _, batch in made.advance(0.006).batches] == [[one]]
    assert made.refused(batch_id, 0.007) is None
    assert made.finished(batch_id, 1.0, 0.007) is None


def test_work_of_a_model_that_is_away_holds_nothing_up() -> None:
    made = dispatch()
    arrive(made, unit())
    other = "e" * 64
    made.serve({other: Tuned(cost=SEED)}, {"other": other})
    steps = made.advance(0.0)
    assert steps.batches == []
    assert all(order.waits and order.lane == "other" for order in steps.pulls)


def test_a_lost_sidecar_leaves_nothing_behind() -> None:
    made = dispatch()
    arrive(made, unit())
    made.advance(0.0)
    arrive(made, unit())
    made.lost(0.1)
    assert len(made.device) == 0
    assert made.advance(0.1).batches == []


class Simulation:
    """A worker over a deep queue and a device whose streams share it, off its predictions by up to a quarter."""

    HOP_S = 0.001

    def __init__(self, streams: int, seed: int, cost: Cost = SEED, **units: int) -> None:
        self.made = dispatch(streams, cost)
        self.left = units
        self.now_s = 0.0
        self.batches: list[Batch] = []
        self.done_ms = {INTERACTIVE: 0.0, BULK: 0.0}
        self._streams = streams
        self._rng = random.Random(seed)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._left_ms: dict[int, float] = {}

    def run(self, until_s: float) -> None:
        """Runs from event to event."""
        self._act()
        while self.now_s < until_s and (self._events or self._left_ms):
            running = list(self._left_ms.items())[: self._streams]
            ends = [(self.now_s + left_ms / 1e3 * len(running), batch_id) for batch_id, left_ms in running]
            end_s, batch_id = min(ends, default=(float("inf"), 0))
            if self._events and self._events[0][0] < end_s:
                at_s, _, event = heapq.heappop(self._events)
                self._pass(at_s)
                event()
            else:
                self._pass(end_s)
                del self._left_ms[batch_id]
                self._later(self.HOP_S / 2, functools.partial(self._done, batch_id))

    def _pass(self, at_s: float) -> None:
        running = list(self._left_ms)[: self._streams]
        for batch_id in running:
            self._left_ms[batch_id] -= (at_s - self.now_s) * 1e3 / len(running)
        self.now_s = at_s

    def _later(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._order), event))

    def _act(self) -> None:
        steps = self.made.advance(self.now_s)
        for batch_id, batch in steps.batches:
            self.batches.append(batch)
            actual_ms = batch.predicted_ms * self._rng.uniform(0.75, 1.25)
            self._later(self.HOP_S / 2, functools.partial(self._left_ms.__setitem__, batch_id, actual_ms))
        for order in steps.pulls:
            self._later(self.HOP_S, functools.partial(self._pulled, order))
        if steps.wake_in_s is not None:
            self._later(steps.wake_in_s, self._act)

    def _pulled(self, order: Order) -> None:
        if order.kind is Kind.PEEK and self.left[order.work_class]:
            self.made.plan.peeked(order.pull_id, self.now_s, found=True)
            return
        count = min(order.batch, self.left[order.work_class])
        self.left[order.work_class] -= count
        for _ in range(count):
            pending = self.left[order.work_class]
            self.made.plan.delivered(order.lane, order.work_class, order.waits, pending, self.now_s)
            arrive(self.made, unit(work_class=order.work_class))
        if count < order.batch:
            self.made.plan.ended(order.pull_id, empty=True, now_s=self.now_s)
        self._act()

    def _done(self, batch_id: int) -> None:
        batch = self.made.finished(batch_id, 1e9, self.now_s)
        assert batch is not None
        self.done_ms[batch.work_class] += batch.predicted_ms
        self._act()


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_a_saturated_device_is_kept_busy_with_whole_batches(streams: int) -> None:
    seed = random.randrange(1 << 30)
    simulation = Simulation(streams, seed, interactive=100_000, bulk=100_000)
    simulation.run(8.0)
    batches = simulation.batches
    assert max(batch.predicted_ms for batch in batches) <= BULK_MS * batching.STRETCH, f"seed {seed}"
    mean_ms = sum(batch.predicted_ms for batch in batches) / len(batches)
    assert mean_ms > 0.9 * INTERACTIVE_MS, f"seed {seed}"
    assert sum(simulation.done_ms.values()) / 8e3 > 0.95, f"seed {seed}"
    assert 0.05 < simulation.done_ms[BULK] / sum(simulation.done_ms.values()) < 0.15, f"seed {seed}"


@pytest.mark.parametrize("streams", [1, 2])
def test_all_work_is_done(streams: int) -> None:
    seed = random.randrange(1 << 30)
    simulation = Simulation(streams, seed, interactive=3_000, bulk=3_000)
    simulation.run(60.0)
    assert simulation.left == {INTERACTIVE: 0, BULK: 0}, f"seed {seed}"
    assert sum(len(batch.units) for batch in simulation.batches) == 6_000, f"seed {seed}"
    assert len(simulation.made.device) == 0, f"seed {seed}"


@pytest.mark.parametrize("batch_ms", [INTERACTIVE_MS - 1, INTERACTIVE_MS, BULK_MS, 10 * BULK_MS])
def test_a_model_whose_batch_alone_is_over_the_limits_is_served(batch_ms: float) -> None:
    seed = random.randrange(1 << 30)
    simulation = Simulation(1, seed, Cost(batch_ms=batch_ms, token_us=100.0), interactive=300, bulk=300)
    simulation.made.plan.delivered("lane", INTERACTIVE, True, 300, 0.0)
    simulation.run(120.0)
    assert simulation.left == {INTERACTIVE: 0, BULK: 0}, f"seed {seed}"
    assert sum(len(batch.units) for batch in simulation.batches) == 600, f"seed {seed}"
    assert len(simulation.batches) < 300, f"seed {seed}"


def test_a_unit_larger_than_its_class_may_take_runs() -> None:
    made = dispatch()
    arrive(made, one := unit(tokens=10_000))
    [(_, batch)] = made.advance(0.0).batches
    assert batch.units == [one]
    assert batch.predicted_ms > BULK_MS


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("tokens", [10, 10_000])
def test_the_window_keeps_every_stream_in_work(streams: int, tokens: int) -> None:
    made = dispatch(streams)
    for _ in range(50):
        arrive(made, unit(tokens=tokens))
    batch = made.advance(0.0).batches[0][1]
    assert made.window_ms >= (streams + 2) * batch.predicted_ms * 0.8


def test_a_slow_models_lane_holds_no_other_up() -> None:
    made = Dispatch(1, pace.CPU, random.Random(1), 0.0)
    other = "e" * 64
    slow = Tuned(cost=Cost(batch_ms=INTERACTIVE_MS, token_us=100.0))
    made.serve({DIGEST: slow, other: Tuned(cost=SEED)}, {"slow": DIGEST, "quick": other})
    for work_class in (INTERACTIVE, BULK):
        made.plan.delivered("slow", work_class, True, 5, 0.0)
    drained = set()
    for _ in range(4):
        for order in made.advance(0.0).pulls:
            drained.add((order.lane, order.work_class, order.waits))
            made.plan.ended(order.pull_id, empty=True, now_s=0.0)
    assert drained >= {("slow", INTERACTIVE, False), ("slow", BULK, False), ("quick", INTERACTIVE, True)}
