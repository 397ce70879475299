"""Which stream runs which job."""

from __future__ import annotations

import random

from shoal_torch_runtime.dispatcher import WIDE, Dispatcher, Start


def test_a_batch_that_is_alone_runs_wide():
    dispatcher: Dispatcher[str] = Dispatcher(2)
    assert dispatcher.add("a") == [Start(WIDE, "a")]


def test_batches_behind_a_wide_one_start_narrow_together_when_it_ends():
    dispatcher: Dispatcher[str] = Dispatcher(2)
    dispatcher.add("a")
    assert dispatcher.add("b") == []
    assert dispatcher.add("c") == []
    assert dispatcher.ended(WIDE) == [Start(1, "b"), Start(2, "c")]


def test_a_narrow_stream_that_is_free_takes_the_next_batch():
    dispatcher: Dispatcher[str] = Dispatcher(2)
    for job in "abcd":
        dispatcher.add(job)
    dispatcher.ended(WIDE)
    assert dispatcher.ended(2) == [Start(2, "d")]
    assert dispatcher.ended(1) == []
    assert dispatcher.add("e") == [Start(1, "e")]


def test_one_batch_left_after_all_narrow_ones_runs_wide():
    dispatcher: Dispatcher[str] = Dispatcher(2)
    for job in "abc":
        dispatcher.add(job)
    dispatcher.ended(WIDE)
    dispatcher.ended(1)
    dispatcher.ended(2)
    assert dispatcher.add("d") == [Start(WIDE, "d")]


def test_one_stream_is_only_wide():
    dispatcher: Dispatcher[str] = Dispatcher(1)
    assert dispatcher.add("a") == [Start(WIDE, "a")]
    assert dispatcher.add("b") == []
    assert dispatcher.add("c") == []
    assert dispatcher.ended(WIDE) == [Start(WIDE, "b")]


def test_a_job_that_runs_alone_waits_for_all_and_all_wait_for_it():
    dispatcher: Dispatcher[str] = Dispatcher(2)
    for job in "abc":
        dispatcher.add(job)
    dispatcher.ended(WIDE)
    dispatcher.add("load", alone=True)
    dispatcher.add("d")
    dispatcher.add("e")
    assert dispatcher.ended(1) == []
    assert dispatcher.ended(2) == [Start(WIDE, "load")]
    assert dispatcher.ended(WIDE) == [Start(1, "d"), Start(2, "e")]


def test_a_single_batch_before_a_job_that_runs_alone_runs_wide():
    dispatcher: Dispatcher[str] = Dispatcher(2)
    for job in "ab":
        dispatcher.add(job)
    dispatcher.add("load", alone=True)
    assert dispatcher.ended(WIDE) == [Start(WIDE, "b")]


def test_nothing_is_lost_reordered_or_run_beside_the_wide_stream():
    for seed in range(200):
        _drive(random.Random(seed), seed)


def _drive(chance: random.Random, seed: int) -> None:
    streams = chance.randint(1, 4)
    dispatcher: Dispatcher[int] = Dispatcher(streams)
    running: dict[int, int] = {}
    alone: set[int] = set()
    started: list[int] = []
    added = 0
    while len(started) < 40 or running:
        if added < 40 and (not running or chance.random() < 0.5):
            if chance.random() < 0.1:
                alone.add(added)
            starts = dispatcher.add(added, alone=added in alone)
            added += 1
        else:
            stream = chance.choice(sorted(running))
            del running[stream]
            starts = dispatcher.ended(stream)
        for start in starts:
            assert start.stream not in running, f"seed {seed}"
            running[start.stream] = start.job
            started.append(start.job)
        assert WIDE not in running or len(running) == 1, f"seed {seed}: {running}"
        assert not alone & set(running.values()) or len(running) == 1, f"seed {seed}: {running}"
        assert len(running) <= streams, f"seed {seed}: {running}"
    assert started == list(range(40)), f"seed {seed}"
