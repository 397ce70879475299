"""The cost model follows the machine, within bounds."""

from __future__ import annotations

import random

import pytest

from shoal_common.profile import Cost
from shoal_worker.decisions.cost import MEAN_UNITS, SCALE_BOUND, CostModel

SEED = Cost(batch_ms=3.0, token_us=95.0, squared_token_ns=40.0, item_us=40.0)


def test_the_seed_is_the_formula() -> None:
    cost = CostModel(SEED)
    assert cost.batch_ms == 3.0
    assert cost.predict(2, 100, 5_000) == pytest.approx(95e-3 * 100 + 40e-6 * 5_000 + 40e-3 * 2)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_machine_of_another_speed_is_learnt(factor: float) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    cost = CostModel(SEED)
    truth = CostModel(SEED)
    for _ in range(200):
        tokens = rng.randint(5, 600)
        actual_ms = factor * (truth.batch_ms + truth.predict(1, tokens, tokens**2)) * rng.uniform(0.8, 1.25)
        cost.learn(cost.batch_ms + cost.predict(1, tokens, tokens**2), actual_ms)
    assert cost.scale == pytest.approx(factor, rel=0.2), f"seed {seed}"


def test_one_stall_changes_little() -> None:
    cost = CostModel(SEED)
    cost.learn(10.0, 10_000.0)
    assert cost.scale < 1.1


def test_the_scale_is_bounded_and_comes_back() -> None:
    cost = CostModel(SEED)
    for _ in range(1_000):
        cost.learn(1.0, 1e9)
    assert cost.scale == SCALE_BOUND
    for _ in range(100):
        cost.learn(1.0 * cost.scale, 1.0)
    assert cost.scale == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("pair", [(0.0, 5.0), (5.0, 0.0)])
def test_nothing_is_learnt_from_nothing(pair: tuple[float, float]) -> None:
    cost = CostModel(SEED)
    cost.learn(*pair)
    assert cost.scale == 1.0


def test_the_mean_forgets() -> None:
    cost = CostModel(SEED)
    cost.seen(10.0)
    assert cost.unit_ms == 10.0
    for _ in range(10 * MEAN_UNITS):
        cost.seen(2.0)
    assert cost.unit_ms == pytest.approx(2.0, abs=0.01)
