"""When an ended process starts again."""

import pytest

from shoal_supervisor.backoff import FIRST_S, HEALTHY_S, LONGEST_S, Backoff


def crash_loop(backoff: Backoff, lives: int, life_s: float, now_s: float = 0.0) -> list[float]:
    waits = []
    for _ in range(lives):
        backoff.started(now_s)
        now_s += life_s
        waits.append(backoff.ended(now_s))
        now_s += waits[-1]
    return waits


def test_the_first_restart_is_immediate_and_a_crash_loop_slows_down():
    waits = crash_loop(Backoff(), 10, life_s=0.0)
    assert waits == pytest.approx([0, FIRST_S, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_S, LONGEST_S, LONGEST_S])


def test_a_life_counts_towards_the_wait():
    assert crash_loop(Backoff(), 4, life_s=0.3) == pytest.approx([0, 0, 0, 0.4 - 0.3])


def test_what_lives_longer_than_the_longest_wait_is_never_kept_waiting():
    assert set(crash_loop(Backoff(), 20, life_s=LONGEST_S)) == {0}


def after_a_crash_loop(healthy_s: float, unwell: bool = False) -> float:
    backoff = Backoff()
    crash_loop(backoff, 20, life_s=0.0)
    backoff.started(1_000.0)
    backoff.ready(1_000.0)
    if unwell:
        backoff.not_ready()
        backoff.ready(1_000.0 + healthy_s / 2)
    backoff.ended(1_000.0 + healthy_s)
    backoff.started(2_000.0)
    return backoff.ended(2_000.0)


def test_health_makes_it_forget():
    assert after_a_crash_loop(HEALTHY_S) == pytest.approx(FIRST_S)
    assert after_a_crash_loop(HEALTHY_S - 1) == pytest.approx(LONGEST_S)


def test_health_must_be_unbroken():
    assert after_a_crash_loop(HEALTHY_S, unwell=True) == pytest.approx(LONGEST_S)
