"""What is a unit, and what is none: the same for workers and for requeueing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.work.v1 import work_pb2
from shoal_common import blobs, limits, unit_form


def unit(**fields: Any) -> work_pb2.Unit:
    values: dict[str, Any] = {
        "id": "u1",
        "reply_subject": "shoal.result.a",
        "remaining_ms": 1_000,
        "work_class": work_pb2.WORK_CLASS_BULK,
        "profile_digest": "d" * 64,
        "items": [b"one", b""],
    }
    return work_pb2.Unit(**(values | fields))


def blob(**fields: Any) -> work_pb2.Blob:
    values: dict[str, Any] = {
        "index": 1,
        "key": blobs.key_of(blobs.ITEMS, "u1", 1),
        "size_bytes": 700_000,
        "sha256": bytes(32),
    }
    return work_pb2.Blob(**(values | fields))


def test_a_unit_has_no_fault() -> None:
    parsed = unit_form.parse(unit(blobs=[blob()]).SerializeToString())
    assert parsed is not None and unit_form.fault(parsed) == ""


@pytest.mark.parametrize("lacking", [{"id": ""}, {"reply_subject": ""}, {"reply_subject": "a b"}])
def test_what_nobody_could_be_told_of_is_no_unit(lacking: dict[str, str]) -> None:
    assert unit_form.parse(unit(**lacking).SerializeToString()) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_judged(data: bytes) -> None:
    parsed = unit_form.parse(data)
    if parsed is not None:
        assert isinstance(unit_form.fault(parsed), str)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"items": []}, "no items"),
        ({"items": [b"a"] * (limits.UNIT_ITEMS + 1)}, "33 items"),
        ({"id": "i" * (limits.UNIT_ID_BYTES + 1)}, "128 bytes"),
        ({"profile_digest": ""}, "no profile"),
        ({"work_class": 0}, "no class"),
        ({"work_class": 77}, "77"),
        ({"remaining_ms": 600_001}, "600,001 ms"),
        ({"blobs": [blob(index=2)]}, "blob 2"),
        ({"blobs": [blob(), blob()]}, "blob 1"),
        ({"blobs": [blob(index=0)]}, "a blob as well"),
        ({"blobs": [blob(key="../etc/passwd")]}, "no key"),
        ({"blobs": [blob(key=blobs.key_of(blobs.ITEMS, "u2", 1))]}, "no key"),
        ({"blobs": [blob(sha256=b"short")]}, "sha256"),
        ({"blobs": [blob(size_bytes=0)]}, "0 bytes"),
    ],
)
def test_each_fault_is_named(wrong: dict[str, Any], named: str) -> None:
    assert named in unit_form.fault(unit(**wrong))
