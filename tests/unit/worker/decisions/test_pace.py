"""The pace of a device, and of a model on it."""

from __future__ import annotations

import pytest

from shoal_common.profile import Tuned
from shoal_worker.decisions import pace
from shoal_worker.decisions.pace import Pace
from shoal_worker.decisions.unit import BULK, INTERACTIVE


def test_cpus_and_gpus_have_their_own() -> None:
    assert pace.of_device("cpu") is pace.CPU
    assert pace.of_device("cuda:3") is pace.of_device("sim:0") is pace.GPU
    assert pace.CPU.batch_ms(INTERACTIVE) == pace.CPU.interactive_ms
    assert pace.CPU.batch_ms(BULK) == pace.CPU.bulk_ms


def test_a_model_may_say_how_long_its_batches_are() -> None:
    own = pace.GPU.of_model(Tuned(interactive_ms=40.0))
    assert (own.interactive_ms, own.bulk_ms) == (40.0, pace.GPU.bulk_ms)
    longer = pace.GPU.of_model(Tuned(interactive_ms=100.0))
    assert longer.bulk_ms == 100.0, "a bulk batch is no shorter than an interactive one"
    assert pace.GPU.of_model(Tuned(bulk_ms=200.0)).bulk_ms == 200.0
    assert pace.GPU.of_model(Tuned()) == pace.GPU


def test_a_model_with_short_batches_is_pulled_later() -> None:
    own = pace.CPU.of_model(Tuned(interactive_ms=4.0))
    assert 0 < own.ready_lead_ms < own.pull_lead_ms < own.interactive_ms


@pytest.mark.parametrize(
    "wrong",
    [
        {"interactive_ms": 0.0},
        {"bulk_ms": 59.0},
        {"pull_lead_ms": 60.0},
        {"ready_lead_ms": 20.0},
        {"ready_lead_ms": 0.0},
    ],
)
def test_a_pace_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    good = {"interactive_ms": 60.0, "bulk_ms": 120.0, "pull_lead_ms": 20.0, "ready_lead_ms": 5.0}
    with pytest.raises(ValueError):
        Pace(**{**good, **wrong})
