"""What a batch is charged: its time on the device, times its share of it; and that its class learns from it."""

from __future__ import annotations

import random

import pytest

from shoal_common.profile import Cost, Tuned
from shoal_worker.decisions import pace
from shoal_worker.decisions.batching import Batch
from shoal_worker.decisions.dispatch import Dispatch
from tests.unit.worker.units import DIGEST, unit

SEED = Cost(batch_ms=3.0, token_us=100.0)


def dispatch(streams: int) -> Dispatch:
    made = Dispatch(streams, pace.CPU, random.Random(1), 0.0)
    made.serve({DIGEST: Tuned(cost=SEED)}, {"lane": DIGEST})
    return made


def send(made: Dispatch, now_s: float, tokens: int) -> int:
    """A unit comes and is sent as a batch of its own: the batch's id."""
    one = unit(tokens=tokens, squared_tokens=tokens**2, deliveries=2)  # It runs alone in its batch.
    made.admitting([one], 0.0)
    made.counted(one, 1, tokens, tokens**2)
    [(batch_id, _)] = made.advance(now_s).batches
    return batch_id


def end(made: Dispatch, batch_id: int, compute_ms: float, ended_s: float) -> Batch:
    batch = made.finished(batch_id, compute_ms, ended_s + 0.002, ended_s)
    assert batch is not None
    return batch


def test_with_one_stream_a_batch_is_charged_what_it_computed() -> None:
    made = dispatch(1)
    first, second = send(made, 0.0, 70), send(made, 0.0, 170)
    assert end(made, first, 12.0, 0.013).device_ms == pytest.approx(12.0)
    batch = end(made, second, 20.0, 0.033)
    assert (batch.foreseen_ms, batch.device_ms) == (pytest.approx(20.0, rel=0.3), pytest.approx(20.0))
    assert made.costs[DIGEST].batches == 2


def test_a_batch_alone_is_charged_all_of_it_and_one_beside_others_its_share() -> None:
    made = dispatch(2)
    first, second, third = (send(made, 0.0, tokens) for tokens in (70, 70, 170))
    alone = end(made, first, 15.0, 0.016)
    assert alone.device_ms == pytest.approx(15.0)
    # Both run from now on, on a core each.
    halves = [end(made, second, 22.0, 0.040), end(made, third, 42.0, 0.060)]
    assert [batch.device_ms for batch in halves] == [pytest.approx(11.0), pytest.approx(21.0)]
    state = made.costs[DIGEST].state()
    assert state.beside is not None
    assert (state.alone.batches, state.beside.batches) == (1, 2)


def test_a_batch_is_predicted_by_the_class_in_which_it_ran() -> None:
    made = dispatch(2)
    now_s = 0.0
    for _ in range(60):  # All cores together are three times slower than predicted.
        now_s += 1.0
        end(made, send(made, now_s, 170), 60.0, now_s + 0.061)
    cost = made.costs[DIGEST]
    for _ in range(60):  # Two cores at once are as predicted.
        now_s += 1.0
        first, second, third = (send(made, now_s, 170) for _ in range(3))
        end(made, first, 60.0, now_s + 0.061)
        end(made, second, 40.0, now_s + 0.102)
        end(made, third, 40.0, now_s + 0.102)
    assert cost.predict_alone(1, 170, 170**2) == pytest.approx(60.0, rel=0.05)
    assert cost.batch_ms + cost.predict(1, 170, 170**2) == pytest.approx(20.0, rel=0.05)
    now_s += 1.0
    alone = end(made, send(made, now_s, 170), 60.0, now_s + 0.061)
    assert alone.foreseen_ms == pytest.approx(60.0, rel=0.05)


def test_a_batch_of_which_nothing_could_run_teaches_nothing() -> None:
    made = dispatch(1)
    assert end(made, send(made, 0.0, 70), 0.0, 0.001).device_ms == 0.0
    assert made.costs[DIGEST].batches == 0


def test_what_a_former_life_knew_is_used_by_models_now_and_later() -> None:
    former, now, later = dispatch(1), dispatch(1), Dispatch(1, pace.CPU, random.Random(1), 0.0)
    for second in range(50):
        end(former, send(former, float(second), 170), 60.0, second + 0.061)
    saved = {DIGEST: former.costs[DIGEST].state()}
    now.restore_costs(saved)
    later.restore_costs(saved)
    later.serve({DIGEST: Tuned(cost=SEED)}, {"lane": DIGEST})
    for made in (now, later):
        assert made.costs[DIGEST].samples() == former.costs[DIGEST].samples()
