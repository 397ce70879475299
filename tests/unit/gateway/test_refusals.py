"""Errors fit into gRPC's metadata and tell nothing of the inside."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from google.rpc import code_pb2

from shoal_common import errors, limits
from shoal_gateway import refusals
from shoal_gateway.request_ids import request_id


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 10_000, "語" * 10_000, "short"])
@pytest.mark.parametrize("make", [errors.deadline_exceeded, lambda text: errors.invalid_field(text, text)])
def test_no_text_is_too_long_for_a_status(text: str, make) -> None:
    status = refusals.fitted(make(text).status("id"))
    encoded = len(quote(status.message)) + len(status.SerializeToString()) * 4 / 3
    assert encoded < 8 * limits.KIB
    assert status.details and status.message


def test_a_status_that_fits_is_left_alone() -> None:
    status = errors.not_found("model", "minilmm", ["minilm"]).status("id")
    before = status.SerializeToString()
    assert refusals.fitted(status).SerializeToString() == before


def test_unexpected_errors_tell_nothing() -> None:
    error = refusals.typed(KeyError("secret"), "id")
    assert error.code == code_pb2.INTERNAL and "secret" not in error.message
    known = errors.internal()
    assert refusals.typed(known, "id") is known


@pytest.mark.parametrize("asked", ["a", "req-1:2_3.X", "a" * 64])
def test_safe_ids_are_kept(asked: str) -> None:
    assert request_id(asked) == asked


@pytest.mark.parametrize("asked", [None, "", "a" * 65, "a b", 'x"y', "a\nb", "é", b"bytes"])
def test_others_are_replaced(asked: object) -> None:
    name = request_id(asked)
    assert name != asked and len(name) == 32
