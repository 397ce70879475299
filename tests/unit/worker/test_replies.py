"""Results by caller, in messages below the limit."""

from __future__ import annotations

import random

from shoal.work.v1 import work_pb2
from shoal_worker.replies import pack
from tests.unit.worker.units import unit


def result(unit_id: str, *items: bytes) -> work_pb2.UnitResult:
    return work_pb2.UnitResult(unit_id=unit_id, last=True, results=items, worker="w", attempt=1)


def test_results_of_one_caller_share_a_message() -> None:
    units = [unit(reply_subject=f"shoal.result.{caller}") for caller in "abab"]
    replies = pack([(one, result(one.id, b"x")) for one in units], 10_000)
    assert [(reply.subject, reply.units) for reply in replies] == [
        ("shoal.result.a", [units[0], units[2]]),
        ("shoal.result.b", [units[1], units[3]]),
    ]
    assert [part.unit_id for part in replies[0].batch.results] == [units[0].id, units[2].id]


def test_messages_stay_below_the_limit_and_nothing_is_lost() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    limit = 5_000
    sent = {}
    given = []
    for _ in range(50):
        one = unit(reply_subject=f"shoal.result.{rng.choice('ab')}")
        items = [rng.randbytes(rng.randint(0, 900)) for _ in range(rng.randint(1, 32))]
        sent[one.id] = items
        given.append((one, result(one.id, *items)))
    replies = pack(given, limit)
    parts: dict[str, list[work_pb2.UnitResult]] = {}
    for reply in replies:
        assert reply.batch.ByteSize() <= limit, f"seed {seed}"
        assert len(reply.units) == len(reply.batch.results)
        for part in reply.batch.results:
            parts.setdefault(part.unit_id, []).append(part)
    for unit_id, items in sent.items():
        mine = parts[unit_id]
        assert [part.sequence for part in mine] == list(range(len(mine))), f"seed {seed}"
        assert [part.last for part in mine] == [False] * (len(mine) - 1) + [True]
        assert [part.worker for part in mine] == ["w"] * len(mine)
        offset = 0
        for part in mine:
            assert part.offset == offset
            offset += len(part.results)
        assert [item for part in mine for item in part.results] == items, f"seed {seed}"


def test_one_item_over_the_limit_goes_alone() -> None:
    one = unit()
    replies = pack([(one, result(one.id, b"a", b"x" * 2_000, b"b"))], 1_000)
    assert [[len(item) for item in reply.batch.results[0].results] for reply in replies] == [[1], [2_000], [1]]
