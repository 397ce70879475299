"""When a consumer is surely stuck: the same unit at the head of its queue, unknown to it, in two checks."""

from __future__ import annotations

import pytest

from shoal_common.queue_survey import Queue, QueueKey
from shoal_registry.stuck_consumers import SURE_AFTER_S, Suspicions, looks_stuck

BULK, OTHER = QueueKey("lane", "bulk"), QueueKey("other", "bulk")


def queue(stored: int = 3, has_consumer: bool = True, waiting: int = 0, in_flight: int = 0) -> Queue:
    return Queue(BULK, stored, has_consumer, waiting, in_flight, 9)


@pytest.mark.parametrize(
    ("state", "stuck"),
    [
        (queue(), True),
        (queue(stored=0), False),
        (queue(waiting=1), False),
        (queue(in_flight=1), False),
        (queue(has_consumer=False), False),
    ],
)
def test_which_queues_look_stuck(state: Queue, stuck: bool) -> None:
    assert looks_stuck(state) is stuck


def test_one_look_is_not_enough() -> None:
    suspicions = Suspicions()
    assert suspicions.sure({BULK: 5}, 100.0) == [] and len(suspicions) == 1
    assert suspicions.sure({BULK: 5}, 100.0 + SURE_AFTER_S - 0.01) == []
    assert suspicions.sure({BULK: 5}, 100.0 + SURE_AFTER_S) == [BULK]


def test_a_queue_that_moves_is_not_stuck() -> None:
    suspicions = Suspicions()
    for n in range(10):  # Units come and are acked between the looks: each time another is at the head.
        assert suspicions.sure({BULK: 5 + n}, 100.0 + n * SURE_AFTER_S) == []


def test_a_look_at_which_all_is_well_clears_it() -> None:
    suspicions = Suspicions()
    suspicions.sure({BULK: 5, OTHER: 7}, 100.0)
    assert suspicions.sure({OTHER: 7}, 101.0) == []
    assert suspicions.sure({BULK: 5, OTHER: 7}, 104.0) == [OTHER]
