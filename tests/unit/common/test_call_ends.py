"""Errors fit into gRPC's metadata and tell nothing of the inside."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from google.rpc import code_pb2, error_details_pb2

from shoal_common import call_ends, errors, limits
from shoal_common.request_ids import request_id


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 10_000, "語" * 10_000, "short"])
@pytest.mark.parametrize("make", [errors.deadline_exceeded, lambda text: errors.invalid_field(text, text)])
def test_no_text_is_too_long_for_a_status(text: str, make) -> None:
    status = call_ends.fitted(make(text).status("id"))
    encoded = len(quote(status.message)) + len(status.SerializeToString()) * 4 / 3
    assert encoded < 8 * limits.KIB
    assert status.details and status.message


def test_fields_are_still_named_where_the_text_is_cut() -> None:
    long = (f"profile.{'语' * 10_000}", "is unknown")
    error = errors.invalid_fields([long, *((f"field.{n}", "é" * 2000) for n in range(60))])
    status = call_ends.fitted(error.status("the-id"))
    info, bad, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RequestInfo()
    assert [d.Unpack(m) for d, m in zip(status.details, (info, bad, request), strict=True)] == [True] * 3
    assert bad.field_violations[0].field.startswith("profile.语") and request.request_id == "the-id"


def test_details_that_do_not_fit_go_before_the_reason_and_the_id() -> None:
    big = error_details_pb2.DebugInfo(detail="x" * 10_000)
    status = call_ends.fitted(errors.CallError(code_pb2.INTERNAL, "WHY", "text", big).status("the-id"))
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.RequestInfo()
    assert [d.Unpack(m) for d, m in zip(status.details, (info, request), strict=True)] == [True] * 2
    assert (info.reason, request.request_id) == ("WHY", "the-id")


def test_a_status_that_fits_is_left_alone() -> None:
    status = errors.not_found("model", "minilmm", ["minilm"]).status("id")
    before = status.SerializeToString()
    assert call_ends.fitted(status).SerializeToString() == before


def test_unexpected_errors_tell_nothing() -> None:
    error = call_ends.typed(KeyError("secret"), "id")
    assert error.code == code_pb2.INTERNAL and "secret" not in error.message
    known = errors.internal()
    assert call_ends.typed(known, "id") is known


@pytest.mark.parametrize("asked", ["a", "req-1:2_3.X", "a" * 64])
def test_safe_ids_are_kept(asked: str) -> None:
    assert request_id(asked) == asked


@pytest.mark.parametrize("asked", [None, "", "a" * 65, "a b", 'x"y', "a\nb", "é", b"bytes"])
def test_others_are_replaced(asked: object) -> None:
    name = request_id(asked)
    assert name != asked and len(name) == 32
