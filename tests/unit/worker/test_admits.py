"""Units for the sidecar: every message can be decoded there, however many wait."""

from __future__ import annotations

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import limits
from shoal_worker import admits
from shoal_worker.admits import ADMIT_BYTES
from shoal_worker.decisions.unit import HeldUnit
from tests.unit.worker.units import unit


def pack(units: list[HeldUnit], path: str = "") -> list[sidecar_pb2.AttachRequest]:
    return list(admits.pack((one, [sidecar_pb2.FetchedItem(path=path)] if path else []) for one in units))


def test_few_units_share_a_message() -> None:
    units = [unit(payload=b"x" * 100) for _ in range(50)]
    [request] = pack(units)
    assert [entry.ack_subject for entry in request.admit.units] == [one.ack_subject for one in units]
    assert pack([]) == []


def test_many_bytes_are_cut_into_messages_in_order() -> None:
    units = [unit(payload=bytes(limits.MIB)) for _ in range(80)]
    requests = pack(units)
    assert max(request.ByteSize() for request in requests) <= ADMIT_BYTES
    assert len(requests) < 14
    packed = [entry.ack_subject for request in requests for entry in request.admit.units]
    assert packed == [one.ack_subject for one in units]


def test_many_small_units_count_with_all_that_goes_with_them() -> None:
    units = [unit(payload=b"x", ack_subject="a" * 120, deliveries=1_000) for _ in range(100_000)]
    for path in ("", "p" * 200):
        assert max(request.ByteSize() for request in pack(units, path)) <= ADMIT_BYTES


def test_a_unit_over_the_limit_goes_alone() -> None:
    large = unit(payload=bytes(ADMIT_BYTES + 1))
    requests = pack([unit(payload=b"x"), large, unit(payload=b"x")])
    assert [len(request.admit.units) for request in requests] == [1, 1, 1]
