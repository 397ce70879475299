"""Errors carry their details over the wire, name what is wrong, and stay short."""

from __future__ import annotations

import difflib

import pytest
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


def test_near_names_among_very_many_are_sought_among_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    search = difflib.get_close_matches

    def counted(name: str, among: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(among))
        return search(name, among, n, cutoff)

    monkeypatch.setattr(errors.difflib, "get_close_matches", counted)
    known = [f"team-{n}-encoder" for n in range(10_000)] + ["minilm"]
    for name in ("minilmm", "minlm", "minilm-v2"):
        assert "did you mean minilm?" in errors.not_found("model", name, known).message
    errors.not_found("model", "m" * 1_000_000, known)
    assert len(compared) == 4 and max(compared) <= errors.NEAR_CANDIDATES


def test_text_that_is_no_unicode_can_still_be_named() -> None:
    assert errors.invalid_field("profile.\ud800", "is unknown").status().message == "profile.?: is unknown"
