"""The cost model: two classes of batch, the mean cost of a unit, and what outlives a restart."""

from __future__ import annotations

import random

import pytest

from shoal_common.profile import Cost
from shoal_worker.decisions.cost import MEAN_UNITS, CostModel

SEED = Cost(batch_ms=3.0, token_us=95.0, squared_token_ns=40.0, item_us=40.0)
BATCH = (2, 100, 5_000)
BATCH_MS = 95e-3 * 100 + 40e-6 * 5_000 + 40e-3 * 2


def teach(cost: CostModel, factor: float, *, alone: bool, batches: int = 100) -> None:
    truth, rng = CostModel(SEED), random.Random(1)
    for _ in range(batches):
        tokens = rng.randint(5, 600)
        cost.learn(1, tokens, tokens**2, factor * truth.predict_alone(1, tokens, tokens**2), alone=alone)


@pytest.mark.parametrize("streams", [1, 2])
def test_the_seed_is_the_formula(streams: int) -> None:
    cost = CostModel(SEED, streams)
    assert cost.batch_ms == 3.0
    assert cost.predict(*BATCH) == pytest.approx(BATCH_MS)
    assert cost.predict_alone(*BATCH) == pytest.approx(3.0 + BATCH_MS)
    assert cost.unit_ms == cost.predict(1, 64, 64**2)


def test_batches_alone_and_beside_others_are_learnt_apart() -> None:
    cost = CostModel(SEED, 2)
    teach(cost, 1.5, alone=False)
    teach(cost, 3.0, alone=True)
    assert cost.predict(*BATCH) == pytest.approx(1.5 * BATCH_MS, rel=0.02)
    assert cost.batch_ms == pytest.approx(1.5 * 3.0, rel=0.05)
    assert cost.predict_alone(*BATCH) == pytest.approx(3.0 * (3.0 + BATCH_MS), rel=0.02)
    assert cost.batches == 200


def test_with_one_stream_there_is_one_class() -> None:
    cost = CostModel(SEED)
    teach(cost, 2.0, alone=True)
    assert cost.predict(*BATCH) == pytest.approx(2.0 * BATCH_MS, rel=0.02)
    assert cost.batches == 100
    assert cost.state().beside is None


def test_until_batches_ran_beside_others_only_the_machines_speed_is_known_of_them() -> None:
    cost = CostModel(SEED, 2)
    teach(cost, 2.0, alone=True)
    assert cost.predict(*BATCH) == pytest.approx(2.0 * BATCH_MS, rel=0.02)
    teach(cost, 1.0, alone=False)
    assert cost.predict(*BATCH) == pytest.approx(BATCH_MS, rel=0.02)


def test_the_mean_of_units_forgets_and_follows_what_is_learnt() -> None:
    cost = CostModel(SEED)
    cost.seen(10.0)
    assert cost.unit_ms == 10.0
    for _ in range(10 * MEAN_UNITS):
        cost.seen(2.0)
    assert cost.unit_ms == pytest.approx(2.0, abs=0.01)
    teach(cost, 2.0, alone=True)
    assert cost.unit_ms == pytest.approx(4.0, rel=0.05)


def test_the_mean_error_is_of_predictions_made_before() -> None:
    cost = CostModel(SEED)
    cost.learn(*BATCH, 2 * (3.0 + BATCH_MS))
    assert cost.mean_error == pytest.approx(0.5)
    teach(cost, 2.0, alone=True, batches=300)
    assert cost.mean_error < 0.01


@pytest.mark.parametrize("actual_ms", [0.0, -1.0, float("nan"), float("inf")])
def test_nothing_is_learnt_from_what_is_no_time(actual_ms: float) -> None:
    cost = CostModel(SEED, 2)
    before = cost.state()
    cost.learn(*BATCH, actual_ms, alone=False)
    assert cost.state() == before


@pytest.mark.parametrize("streams", [1, 2])
def test_a_restored_model_predicts_as_the_one_before(streams: int) -> None:
    cost, restored = CostModel(SEED, streams), CostModel(SEED, streams)
    teach(cost, 2.0, alone=True)
    teach(cost, 4.0, alone=streams == 1)
    restored.restore(cost.state())
    assert restored.samples() == cost.samples()
    assert restored.batches == cost.batches == cost.state().batches
    assert restored.unit_ms == pytest.approx(restored.predict(1, 64, 64**2))


def test_samples_tell_each_class_apart() -> None:
    cost = CostModel(SEED, 2)
    before = cost.samples()
    teach(cost, 2.0, alone=True)
    teach(cost, 1.0, alone=False)
    ratios = [after / old for after, old in zip(cost.samples(), before, strict=True)]
    assert ratios == pytest.approx([2.0, 2.0, 1.0, 1.0], rel=0.02)
