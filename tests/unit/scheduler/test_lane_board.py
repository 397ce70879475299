"""The board: a watcher that follows it knows what it shows, however slowly it reads."""

from __future__ import annotations

import random

from shoal.scheduler.v1 import scheduler_pb2
from shoal_scheduler.lane_board import LaneBoard
from tests.unit.scheduler.reports import READY

States = dict[str, scheduler_pb2.LaneState]


def state(token: str, wait_ms: float = 0.0) -> scheduler_pb2.LaneState:
    return scheduler_pb2.LaneState(lane=token, residency=READY, wait_ms=wait_ms)


async def test_watchers_follow_the_board_whatever_happens():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    board = LaneBoard()
    with board.joined() as watcher:
        known: States = {}
        for _ in range(200):
            tokens = rng.sample("abcdef", rng.randrange(7))
            board.show({token: state(token, rng.choice([0.0, 10.0, 100.0])) for token in tokens})
            if rng.random() < 0.3 and watcher._wake.is_set():
                change = await watcher.next()
                assert change is not None
                for lane in change[0]:
                    known[lane.lane] = lane
                for token in change[1]:
                    known.pop(token, None)
                assert known == board.states, f"seed {seed}"


async def test_small_changes_are_not_told_but_add_up():
    board = LaneBoard()
    board.show({"a": state("a", 100.0)})
    with board.joined() as watcher:
        for wait_ms in (104.0, 108.0, 112.0):
            assert not watcher._wake.is_set()
            board.show({"a": state("a", wait_ms)})
        assert await watcher.next() == ([state("a", 112.0)], [])


async def test_watchers_are_told_how_many_they_are():
    board = LaneBoard()
    with board.joined() as first:
        assert board.watchers == 1
        assert not first._wake.is_set(), "the first message says so"
        with board.joined() as second:
            assert await first.next() == ([], [])
            assert board.watchers == 2
            assert not second._wake.is_set()
        assert await first.next() == ([], [])
        assert board.watchers == 1


async def test_a_closed_board_ends_its_watchers():
    board = LaneBoard()
    with board.joined() as watcher:
        board.close()
        assert await watcher.next() is None
