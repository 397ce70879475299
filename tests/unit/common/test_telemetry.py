"""The trace file is bounded, however many processes write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from shoal_common import limits
from shoal_common.telemetry import FileExporter


def test_a_long_trace_file_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACE_FILE_BYTES", 2000)
    file, old = tmp_path / "traces.jsonl", tmp_path / "traces.jsonl.1"
    exporter = FileExporter(file)
    for n in range(50):
        exporter.export([ReadableSpan(f"span {n}")])
    assert old.exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 2500
    newest = (file if file.exists() else old).read_text().splitlines()[-1]
    assert "span 49" in newest


def test_a_file_that_another_process_moved_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACE_FILE_BYTES", 10)
    file, old = tmp_path / "traces.jsonl", tmp_path / "traces.jsonl.1"
    file.write_text("a long file, seen by two\n")
    exporter = FileExporter(file)
    with file.open("a") as seen:
        file.replace(old)
        file.write_text("new\n")
        exporter._move_aside(seen)
    assert (file.read_text(), old.read_text()) == ("new\n", "a long file, seen by two\n")
