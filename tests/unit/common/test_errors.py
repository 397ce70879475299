"""Errors carry their details over the wire, name what is wrong, and stay short."""

from __future__ import annotations

from google.rpc import code_pb2

from shoal_common import errors, limits


def test_an_error_survives_the_way_through_another_process() -> None:
    sent = errors.overloaded("lane minilm is full", 0.5).status("r1")
    received = errors.from_status(sent)
    assert (received.code, received.reason) == (code_pb2.RESOURCE_EXHAUSTED, "OVERLOADED")
    again = received.status("r1")
    assert again == sent


def test_near_names() -> None:
    error = errors.not_found("model", "minilmm", ["minilm", "e5"])
    assert "did you mean minilm" in error.message


def test_long_texts_are_cut_between_characters() -> None:
    error = errors.malformed("ä" * 10_000)
    assert len(error.message.encode()) <= limits.ERROR_TEXT_BYTES
