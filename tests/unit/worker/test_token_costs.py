"""A token's cost: what batches took in all, over what gateways had guessed."""

from __future__ import annotations

import pytest

from shoal_worker.token_costs import TokenCosts


def test_it_is_time_over_guessed_tokens_by_model() -> None:
    costs = TokenCosts()
    assert costs.ms_per_token("a") == 0.0
    costs.ran("a", 10.0, 40)
    costs.ran("b", 30.0, 30)
    assert (costs.ms_per_token("a"), costs.ms_per_token("b")) == (0.25, 1.0)


def test_a_full_batch_outweighs_the_crumbs_before_it() -> None:
    costs = TokenCosts()
    for _ in range(100):
        costs.ran("a", 5.0, 20)
    assert costs.ms_per_token("a") == pytest.approx(0.25)
    costs.ran("a", 60.0, 600)
    assert costs.ms_per_token("a") < 0.16
    for _ in range(20):
        costs.ran("a", 60.0, 600)
    assert costs.ms_per_token("a") == pytest.approx(0.1, rel=0.1)


def test_what_was_guessed_as_nothing_has_no_cost_yet() -> None:
    costs = TokenCosts()
    costs.ran("a", 5.0, 0)
    assert costs.ms_per_token("a") == 0.0
