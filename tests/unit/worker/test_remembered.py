"""Ids are remembered until their time is over."""

from __future__ import annotations

import random

from shoal_worker.remembered import Remembered


def test_an_id_is_held_until_its_time() -> None:
    ids = Remembered()
    ids.add("a", 2.0)
    assert ids.holds("a", 1.9)
    assert not ids.holds("a", 2.0)
    assert not ids.holds("b", 0.0)


def test_a_second_time_replaces_the_first() -> None:
    ids = Remembered()
    ids.add("a", 2.0)
    ids.add("a", 5.0)
    assert ids.holds("a", 4.0)


def test_old_ids_take_no_memory() -> None:
    ids = Remembered()
    for number in range(100):
        ids.add(str(number), float(number))
    ids.forget_old(50.0)
    assert len(ids) == 49
    assert ids.holds("60", 50.0)


def test_an_id_that_stays_long_holds_no_other() -> None:
    ids = Remembered()
    ids.add("cancelled", 600.0)
    for number in range(100):
        ids.add(str(number), float(number))
    ids.forget_old(100.0)
    assert len(ids) == 1
    assert ids.holds("cancelled", 100.0)


def test_an_id_added_again_is_forgotten_at_its_last_time() -> None:
    ids = Remembered()
    for until_s in (2.0, 5.0, 3.0, 5.0):
        ids.add("a", until_s)
    ids.forget_old(4.0)
    assert ids.holds("a", 4.0)
    ids.forget_old(5.0)
    assert len(ids) == 0


def test_beyond_the_capacity_the_soonest_are_forgotten() -> None:
    ids = Remembered(capacity=10)
    times = list(range(100))
    random.shuffle(times)
    for time_s in times:
        ids.add(str(time_s), float(time_s))
    assert len(ids) == 10
    assert all(ids.holds(str(time_s), 0.0) for time_s in range(90, 100)), times
