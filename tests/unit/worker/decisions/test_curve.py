"""A curve follows the device it is on, whatever the seed, and nothing that it hears leads it astray."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.profile import Cost
from shoal_worker.decisions.curve import Curve
from shoal_worker.decisions.refit import MOST_GAIN

SEED = Cost(batch_ms=3.0, token_us=95.0, squared_token_ns=40.0, item_us=40.0)
Batch = tuple[int, int, int]
"""Items, tokens, squared tokens."""

costs = st.builds(
    Cost,
    batch_ms=st.floats(0.5, 20.0),
    token_us=st.floats(5.0, 500.0),
    squared_token_ns=st.floats(0.0, 200.0),
    item_us=st.floats(0.0, 300.0),
)
seeds = st.integers(0, 2**32 - 1)


def batch_of(rng: random.Random, items: int | None = None) -> Batch:
    """A batch of texts with lognormal lengths."""
    count = items or rng.choice([1, 1, 2, 4, 8, 16, 32])
    lengths = [max(3, min(256, round(rng.lognormvariate(math.log(20), 0.8)))) for _ in range(count)]
    return count, sum(lengths), sum(length * length for length in lengths)


def true_ms(cost: Cost, batch: Batch) -> float:
    items, tokens, squared = batch
    return (
        cost.batch_ms
        + cost.token_us * tokens / 1e3
        + cost.squared_token_ns * squared / 1e6
        + cost.item_us * items / 1e3
    )


def teach(
    curve: Curve, truth: Cost, rng: random.Random, batches: int, noise: float = 0.1, outliers: float = 0.0
) -> None:
    for _ in range(batches):
        batch = batch_of(rng)
        actual_ms = true_ms(truth, batch) * rng.lognormvariate(-noise * noise / 2, noise)
        curve.learn(*batch, actual_ms * (rng.uniform(3, 50) if rng.random() < outliers else 1.0))


def mean_error(curve: Curve, truth: Cost, rng: random.Random) -> float:
    """Mean of |predicted - true| / true over fresh batches."""
    errors = []
    for _ in range(100):
        batch = batch_of(rng)
        errors.append(abs(curve.predict(*batch) / true_ms(truth, batch) - 1))
    return sum(errors) / len(errors)


def test_the_seed_is_the_formula() -> None:
    curve = Curve(SEED)
    assert curve.batch_ms == 3.0
    assert curve.predict(2, 100, 5_000) == pytest.approx(3.0 + 95e-3 * 100 + 40e-6 * 5_000 + 40e-3 * 2)


@settings(deadline=None, max_examples=40)
@given(truth=costs, noise=st.floats(0.0, 0.08), seed=seeds)
def test_a_curve_is_recovered_from_noisy_batches(truth: Cost, noise: float, seed: int) -> None:
    rng, curve = random.Random(seed), Curve(SEED)
    teach(curve, truth, rng, 400, noise)
    assert mean_error(curve, truth, rng) < 0.05


@settings(deadline=None, max_examples=40)
@given(truth=costs, seed=seeds)
def test_stalls_of_the_machine_do_not_hide_the_curve(truth: Cost, seed: int) -> None:
    rng, curve = random.Random(seed), Curve(SEED)
    teach(curve, truth, rng, 400, noise=0.08, outliers=0.03)
    assert mean_error(curve, truth, rng) < 0.08


@pytest.mark.parametrize("factor", [1 / 18, 0.25, 4.0, 18.0])
def test_a_seed_that_is_wrong_as_a_whole_is_corrected(factor: float) -> None:
    truth = Cost(**{name: value * factor for name, value in SEED.model_dump().items()})
    seed = random.randrange(1 << 30)
    rng, curve = random.Random(seed), Curve(SEED)
    teach(curve, truth, rng, 30)
    assert mean_error(curve, truth, rng) < 0.15, f"seed {seed}"
    teach(curve, truth, rng, 200)
    assert mean_error(curve, truth, rng) < 0.08, f"seed {seed}"


def test_a_profile_that_is_not_tuned_for_a_gpu_is_corrected() -> None:
    rng, curve, truth = random.Random(3), Curve(Cost()), Cost(batch_ms=4.0, token_us=2.0)
    for _ in range(400):
        batch = batch_of(rng, rng.choice([1, 16, 64, 256]))
        curve.learn(*batch, true_ms(truth, batch) * rng.uniform(0.95, 1.05))
    for items in (1, 16, 256):
        batch = batch_of(rng, items)
        assert curve.predict(*batch) == pytest.approx(true_ms(truth, batch), rel=0.06)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, noise=st.floats(0.0, 0.1))
def test_a_machine_that_becomes_three_times_slower_is_known_within_40_batches(seed: int, noise: float) -> None:
    rng, curve = random.Random(seed), Curve(SEED)
    teach(curve, SEED, rng, 300, noise)
    slower = Cost(**{name: 3 * value for name, value in SEED.model_dump().items()})
    teach(curve, slower, rng, 40, noise)
    assert mean_error(curve, slower, rng) < 0.25
    teach(curve, slower, rng, 200, noise)
    assert mean_error(curve, slower, rng) < 0.1


@settings(deadline=None, max_examples=40)
@given(factor=st.floats(3.0, 1e6), stalls=st.integers(1, 2), seed=seeds)
def test_a_stall_moves_nothing(factor: float, stalls: int, seed: int) -> None:
    rng, curve = random.Random(seed), Curve(SEED)
    teach(curve, SEED, rng, 200, noise=0.05)
    batch = batch_of(rng)
    before_ms = curve.predict(*batch)
    for _ in range(stalls):
        one = batch_of(rng)
        curve.learn(*one, factor * true_ms(SEED, one))
    assert curve.predict(*batch) == pytest.approx(before_ms, rel=0.08)


@settings(deadline=None, max_examples=60)
@given(
    batch=st.tuples(st.integers(1, 1_024), st.integers(1, 20_000)),
    noise=st.floats(0.0, 0.1),
    seed=seeds,
)
def test_batches_of_one_size_leave_the_seeds_shape(batch: tuple[int, int], noise: float, seed: int) -> None:
    items, tokens = batch[0], max(batch)
    squared = tokens * tokens // items
    rng, curve = random.Random(seed), Curve(SEED)
    one_ms = 2 * Curve(SEED).predict(items, tokens, squared)
    for _ in range(500):
        curve.learn(items, tokens, squared, one_ms * rng.lognormvariate(0, noise))
    assert curve.predict(items, tokens, squared) == pytest.approx(one_ms, rel=0.1)
    for other in ((1, 20, 400), (32, 640, 12_800), (1, 256, 256**2)):
        assert curve.predict(*other) == pytest.approx(2 * Curve(SEED).predict(*other), rel=0.15)


times = st.one_of(st.floats(1e-6, 1e-3), st.floats(0.1, 1e3), st.floats(1e6, 1e12))


@settings(deadline=None, max_examples=100)
@given(
    seed=st.builds(
        Cost,
        batch_ms=st.sampled_from([0.0, 1e-3, 5.0, 1e4]),
        token_us=st.sampled_from([0.0, 2.0, 100.0, 1e5]),
        squared_token_ns=st.sampled_from([0.0, 40.0, 1e4]),
        item_us=st.sampled_from([0.0, 40.0, 1e5]),
    ),
    heard=st.lists(
        st.tuples(st.integers(0, 1_024), st.integers(0, 65_536), st.integers(0, 65_536**2), times), max_size=300
    ),
)
def test_garbage_is_bounded_and_costs_are_monotone(seed: Cost, heard: list[tuple[int, int, int, float]]) -> None:
    curve = Curve(seed)
    reference = Curve(seed)
    for batch in heard:
        curve.learn(*batch)
    coefficients = (curve.batch_ms, curve.token_ms, curve.squared_ms, curve.item_ms)
    assert all(math.isfinite(value) and value >= 0 for value in coefficients)
    assert curve.token_ms > 0
    for items, tokens, squared in ((1, 20, 400), (64, 4_096, 400_000)):
        # The seed's terms, and room for those that it has none of.
        most_ms = MOST_GAIN * (
            reference.predict(items, tokens, squared) + reference.token_ms * (16 + 2 * tokens + items)
        )
        assert curve.predict(items, tokens, squared) <= most_ms
        assert curve.predict(items, tokens, squared) <= curve.predict(items, tokens + 1, squared)


def test_it_comes_back_after_garbage() -> None:
    rng, curve = random.Random(1), Curve(SEED)
    for actual_ms in (1e9, 1e-6):
        for _ in range(300):
            curve.learn(*batch_of(rng), actual_ms)
        teach(curve, SEED, rng, 300, noise=0.05)
        assert mean_error(curve, SEED, rng) < 0.06


@settings(deadline=None, max_examples=20)
@given(truth=costs, seed=seeds)
def test_a_restored_curve_goes_on_as_the_one_before(truth: Cost, seed: int) -> None:
    rng, curve, restored = random.Random(seed), Curve(SEED), Curve(SEED)
    teach(curve, truth, rng, 100)
    restored.restore(curve.state())
    for _ in range(20):
        batch = batch_of(rng)
        assert restored.predict(*batch) == curve.predict(*batch)
        actual_ms = true_ms(truth, batch) * rng.uniform(0.8, 1.25)
        curve.learn(*batch, actual_ms)
        restored.learn(*batch, actual_ms)
    assert restored.state() == curve.state()


def test_learning_is_cheap() -> None:
    curve, least_us = Curve(SEED), math.inf
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(200):
            curve.learn(5, 100, 3_000, 15.0)
        least_us = min(least_us, (time.perf_counter() - started) / 200 * 1e6)
    assert least_us < 30, "the simulator learns from millions of batches; about 8 µs on an idle machine"
