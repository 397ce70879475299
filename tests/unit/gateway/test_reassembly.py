"""Reassembly: whatever the order, the duplicates and the tries, results come out in request order or not at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.v1 import inference_pb2 as pb
from shoal.work.v1 import work_pb2
from shoal_gateway.reassembly import Answer, WrongResults
from shoal_gateway.units import Run, cut


def texts(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


def part(unit_id: str, results: list[bytes], **fields) -> work_pb2.UnitResult:
    values = {"last": True, "worker": "w", "attempt": 1, "runtime": "sim", "device": "cpu"}
    return work_pb2.UnitResult(unit_id=unit_id, results=results, **(values | fields))


def result(index: int) -> bytes:
    return pb.EncodeResult(id=str(index)).SerializeToString()


def ids(answer: Answer) -> list[str]:
    return [each.id for each in pb.EncodeResponse.FromString(answer.response("m", "rev")).results]


def test_units_in_any_order() -> None:
    runs = {f"u.{n}": run for n, run in enumerate(cut(texts(70), (), 256))}
    answer = Answer(70, {}, runs)
    for unit_id in ("u.2", "u.0", "u.1"):
        first, count = runs[unit_id].first_index, len(runs[unit_id].items)
        complete = answer.add(
            part(unit_id, [result(first + n) for n in range(count)], worker=unit_id, queue_ms=1.5, compute_ms=2.5)
        )
        assert complete == (unit_id == "u.1")
    response = pb.EncodeResponse.FromString(answer.response("m", "rev"))
    assert [each.id for each in response.results] == [str(n) for n in range(70)]
    provenance = response.provenance
    assert (provenance.model, provenance.revision, provenance.runtime, provenance.device) == ("m", "rev", "sim", "cpu")
    assert [(run.first_index, run.count, run.worker, run.attempt) for run in provenance.runs] == [
        (0, 32, "u.0", 1),
        (32, 32, "u.1", 1),
        (64, 6, "u.2", 1),
    ]
    assert (provenance.runs[0].queue_ms, provenance.runs[0].compute_ms) == (1.5, 2.5)


def test_results_that_the_gateway_wrote_keep_their_places() -> None:
    items, written = texts(5), {1: b"\x12\x01w", 4: b"\x12\x01x"}
    runs = {f"u.{n}": run for n, run in enumerate(cut(items, written, 256))}
    answer = Answer(5, written, runs)
    for unit_id, run in runs.items():
        answer.add(part(unit_id, [result(run.first_index + n) for n in range(len(run.items))]))
    assert ids(answer) == ["0", "w", "2", "3", "x"]


def test_the_first_complete_result_counts_and_later_ones_are_dropped() -> None:
    answer = Answer(1, {}, {"u": Run(0, [b"a"], 1)})
    assert answer.add(part("u", [result(1)]))
    assert answer.add(part("u", [result(2)], attempt=2))
    assert ids(answer) == ["1"]


def test_units_of_others_change_nothing() -> None:
    answer = Answer(1, {}, {"u": Run(0, [b"a"], 1)})
    assert not answer.add(part("v", [result(9)]))
    assert answer.open_units == ["u"]


def test_parts_of_two_tries_are_never_mixed() -> None:
    answer = Answer(2, {}, {"u": Run(0, [b"a", b"b"], 1)})
    assert not answer.add(part("u", [result(1)], last=False, worker="dies"))
    assert not answer.add(part("u", [result(11)], last=False, worker="w", attempt=2))
    assert answer.add(part("u", [result(12)], sequence=1, offset=1, worker="w", attempt=2))
    assert ids(answer) == ["11", "12"]


@pytest.mark.parametrize(
    "wrong",
    [
        part("u", []),
        part("u", [b""]),
        part("u", [b""] * 3),
        part("u", [b""] * 2, offset=1),
    ],
)
def test_wrong_results_are_no_answer(wrong: work_pb2.UnitResult) -> None:
    answer = Answer(2, {}, {"u": Run(0, [b"a", b"b"], 1)})
    with pytest.raises(WrongResults):
        answer.add(wrong)


def blob(index: int, **fields) -> work_pb2.Blob:
    values = {"index": index, "key": f"results/2030010100/u-{index}.aa", "size_bytes": 5, "sha256": bytes(32)}
    return work_pb2.Blob(**(values | fields))


def test_results_in_object_storage_are_named_by_the_requests_index() -> None:
    answer = Answer(4, {0: result(0)}, {"u": Run(1, [b"a", b"b", b"c"], 1)})
    assert not answer.add(part("u", [result(1), b""], last=False, blobs=[blob(1)]))
    assert answer.blobs == []
    assert answer.add(part("u", [b""], sequence=1, offset=2, blobs=[blob(2)]))
    assert [(index, each.key) for index, each in answer.blobs] == [
        (2, "results/2030010100/u-1.aa"),
        (3, "results/2030010100/u-2.aa"),
    ]
    answer.put(2, result(2))
    answer.put(3, result(3))
    assert ids(answer) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "wrong",
    [blob(2), blob(1, key="results/2030010100/v-1.aa"), blob(1, key="items/2030010100/u-1"), blob(1, sha256=b"")],
)
def test_results_in_the_blobs_of_others_are_no_answer(wrong: work_pb2.Blob) -> None:
    answer = Answer(2, {}, {"u": Run(0, [b"a", b"b"], 1)})
    with pytest.raises(WrongResults):
        answer.add(part("u", [b"", b""], blobs=[wrong]))


def test_a_unit_that_is_given_up_has_the_result_that_was_written() -> None:
    answer = Answer(2, {}, {"u": Run(0, [b"a"], 1), "v": Run(1, [b"b"], 1, is_blob=True)})
    assert not answer.give_up("v", result(7))
    assert answer.open_units == ["u"]
    assert not answer.add(part("v", [result(8)])), "what comes later is dropped"
    assert answer.add(part("u", [result(0)]))
    assert answer.give_up("v", result(9)), "once is enough"
    assert ids(answer) == ["0", "7"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_parts_in_any_order_and_any_number_of_times(counts: list[int], rng: random.Random) -> None:
    total, parts, offset = sum(counts), [], 0
    for sequence, count in enumerate(counts):
        results = [result(offset + n) for n in range(count)]
        parts.append(part("u", results, sequence=sequence, offset=offset, last=sequence == len(counts) - 1))
        offset += count
    arriving = parts * 2
    rng.shuffle(arriving)
    answer = Answer(total, {}, {"u": Run(0, texts(total), 1)})
    seen: set[int] = set()
    for each in arriving:
        seen.add(each.sequence)
        assert answer.add(each) == (len(seen) == len(parts))
    assert ids(answer) == [str(n) for n in range(total)]
