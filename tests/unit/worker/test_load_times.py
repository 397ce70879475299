"""How long a sibling would wait for a model that is not loaded here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from shoal.scheduler.v1 import scheduler_pb2
from shoal_worker.load_times import LEAST_SHARE, UNKNOWN_MS, LoadTimes
from shoal_worker.residency import ABSENT, FAILED, LOADING, READY, ModelHere


def here(digest: str, state: scheduler_pb2.Residency) -> ModelHere:
    return cast(ModelHere, SimpleNamespace(model=SimpleNamespace(digest=digest), state=state))


def test_a_load_is_measured_from_its_begin_to_its_end() -> None:
    times = LoadTimes()
    assert times.left_ms("a", 0.0) == UNKNOWN_MS
    times.follow([here("a", LOADING)], 10.0)
    times.follow([here("a", LOADING)], 11.0)
    assert times.left_ms("a", 11.0) == UNKNOWN_MS - 1_000
    times.follow([here("a", READY)], 12.0)
    times.follow([here("a", ABSENT)], 50.0)
    assert times.left_ms("a", 50.0) == pytest.approx(2_000)


def test_one_that_was_never_loaded_is_guessed_from_the_others() -> None:
    times = LoadTimes()
    for digest, took_s in (("a", 1.0), ("b", 3.0)):
        times.follow([here(digest, LOADING)], 0.0)
        times.follow([here(digest, READY)], took_s)
    assert times.left_ms("c", 5.0) == 2_000


def test_a_load_that_takes_longer_than_it_should_still_has_some_to_go() -> None:
    times = LoadTimes()
    times.follow([here("a", LOADING)], 0.0)
    assert times.left_ms("a", 60.0) == UNKNOWN_MS * LEAST_SHARE


def test_a_load_that_failed_tells_nothing() -> None:
    times = LoadTimes()
    times.follow([here("a", LOADING)], 0.0)
    times.follow([here("a", FAILED)], 1.0)
    times.follow([here("a", LOADING)], 30.0)
    times.follow([here("a", READY)], 31.0)
    assert times.left_ms("a", 40.0) == 1_000
