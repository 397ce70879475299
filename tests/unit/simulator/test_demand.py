"""What is asked for: as much as was said, by the law that was named, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.simulator import demand


def shares_in(made: demand.Demand, begin_s: float, end_s: float, models: int) -> list[float]:
    """Each model's share of the texts of a while."""
    chosen = [model for at_s, model in zip(made.arrivals_s, made.models, strict=True) if begin_s <= at_s < end_s]
    return [chosen.count(model) / len(chosen) for model in range(models)]


def test_as_many_texts_come_as_was_said_and_they_are_as_long() -> None:
    made = demand.poisson("even", 4, 20_000.0, 3.0, seed=1)
    assert len(made) == pytest.approx(60_000, rel=0.02)
    assert np.mean(made.tokens) == pytest.approx(demand.MEAN_TOKENS, rel=0.02)
    assert made.arrivals_s == sorted(made.arrivals_s) and made.arrivals_s[-1] < 3.0
    assert made.shares == pytest.approx([0.25] * 4, abs=0.01)


def test_guesses_are_off_both_ways_and_right_in_the_mean() -> None:
    made = demand.poisson("even", 1, 20_000.0, 1.0, seed=1)
    ratios = np.array(made.guesses) / np.array(made.tokens)
    assert np.mean(ratios) == pytest.approx(1.0, rel=0.02)
    assert np.std(np.log(ratios)) == pytest.approx(demand.GUESS_SIGMA, rel=0.05)


def test_zipf_keeps_its_order_and_shifting_deals_it_out_anew() -> None:
    zipf = demand.poisson("zipf", 4, 20_000.0, 2.0, seed=1)
    wanted = [1 / (1 + 1 / 2 + 1 / 3 + 1 / 4) / rank for rank in (1, 2, 3, 4)]
    assert shares_in(zipf, 0.0, 2.0, 4) == pytest.approx(wanted, abs=0.01)
    shifting = demand.poisson("shifting", 4, 20_000.0, 8.0, seed=1)
    by_second = [shares_in(shifting, second, second + 1, 4) for second in range(8)]
    assert all(sorted(shares, reverse=True) == pytest.approx(wanted, abs=0.02) for shares in by_second)
    assert len({int(np.argmax(shares)) for shares in by_second}) > 1


def test_the_same_seed_asks_the_same() -> None:
    assert demand.poisson("shifting", 8, 1_000.0, 2.0, 7) == demand.poisson("shifting", 8, 1_000.0, 2.0, 7)
    assert demand.poisson("shifting", 8, 1_000.0, 2.0, 7) != demand.poisson("shifting", 8, 1_000.0, 2.0, 8)


def test_a_trace_is_stretched_and_repeated(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("second,model,tokens\n10.0,0,100\n10.5,2,50\n11.5,0,30\n")
    made = demand.replay(str(file), 100.0, 5.0, seed=1)
    assert len(made) == pytest.approx(500, abs=3)
    assert made.models[:6] == [0, 2, 0, 0, 2, 0]
    assert made.tokens[:3] == [100, 50, 30]
    first, second, third = made.arrivals_s[:3]
    assert (third - second) == pytest.approx(2 * (second - first))
