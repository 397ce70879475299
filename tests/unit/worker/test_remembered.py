"""Ids are remembered until their time is over."""

from __future__ import annotations

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
