"""Logs are bounded, and their last words found."""

import json
from pathlib import Path

import pytest

from shoal_supervisor import log_files


def test_a_long_log_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_files, "KEPT_BYTES", 10)
    log = tmp_path / "gateway.log"
    log_files.rotate(log)
    log.write_text("short")
    log_files.rotate(log)
    assert log.read_text() == "short"
    for text in ("the first long text", "the second long text"):
        log.write_text(text)
        log_files.rotate(log)
        assert not log.exists()
        assert (tmp_path / "gateway.log.1").read_text() == text


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        (
            json.dumps({"event": "service ended by a fault", "exception": "Traceback\n\nOSError: taken\n"}),
            "service ended by a fault: OSError: taken",
        ),
        (json.dumps({"event": "ends", "fault": "closed for good"}), "ends: closed for good"),
        ("3\n", "3"),
        ("x" * 50_000, "x" * 400),
    ],
)
def test_last_words(tmp_path: Path, written: str, words: str):
    log = tmp_path / "log"
    log.write_text(written)
    assert log_files.last_words(log) == words


def test_last_words_of_an_earlier_life_are_not_this_one_s(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("before\n")
    assert log_files.last_words(log, log.stat().st_size) == ""
    assert log_files.last_words(tmp_path / "absent") == ""
