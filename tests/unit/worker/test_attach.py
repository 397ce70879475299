"""What goes to the sidecar in one write."""

from __future__ import annotations

from shoal.sidecar.v1 import sidecar_pb2
from shoal_worker.attach import BUNDLE_BYTES, _bundles


def released(*unit_ids: str) -> sidecar_pb2.AttachRequest:
    return sidecar_pb2.AttachRequest(release=sidecar_pb2.Release(unit_ids=unit_ids))


def test_small_messages_go_together_in_order() -> None:
    first, *more = [released(f"unit-{n}") for n in range(5)]
    assert list(_bundles([first, *more], ())) == [(first, more)]


def test_large_messages_go_alone() -> None:
    small, large, last = released("a"), released("b" * BUNDLE_BYTES), released("c")
    assert list(_bundles([small, large, last], ())) == [(small, []), (large, []), (last, [])]
    half = [released("b" * (BUNDLE_BYTES // 2 - 32)) for _ in range(5)]
    assert [1 + len(more) for _, more in _bundles(half, ())] == [2, 2, 1]


def test_a_message_whose_end_somebody_waits_for_goes_alone() -> None:
    one, waited, last = released("a"), released("b"), released("c")
    assert list(_bundles([one, waited, last], {id(waited)})) == [(one, []), (waited, []), (last, [])]


def test_nothing_is_no_write() -> None:
    assert list(_bundles([], ())) == []
