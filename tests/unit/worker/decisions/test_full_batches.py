"""What units cost in full batches does not depend on how full theirs was."""

from __future__ import annotations

import pytest

from tests.unit.worker.decisions.test_dispatch import INTERACTIVE_MS, SEED, arrive, dispatch
from tests.unit.worker.units import unit


def in_full_batches_ms(units: int) -> float:
    made = dispatch()
    for _ in range(units):
        arrive(made, unit(tokens=100))
    [(_, batch)] = made.advance(0.0).batches
    assert len(batch.units) == units
    return made.in_full_batches_ms(batch)


def test_a_crumb_is_no_dearer_than_its_part_of_a_full_batch() -> None:
    alone_ms = in_full_batches_ms(1)
    assert alone_ms == pytest.approx(10.0 * INTERACTIVE_MS / (INTERACTIVE_MS - SEED.batch_ms))
    full = int((INTERACTIVE_MS - SEED.batch_ms) / 10.0)
    assert in_full_batches_ms(full) == pytest.approx(full * alone_ms)
    assert full * alone_ms == pytest.approx(INTERACTIVE_MS, rel=0.2)
