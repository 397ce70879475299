"""Log files of processes: bounded at each start, and their last words."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

KEPT_BYTES = 20_000_000
TAIL_BYTES = 8_192


def rotate(path: Path) -> None:
    """Moves a file that has grown too long aside; one old file is kept."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > KEPT_BYTES:
            path.replace(path.with_name(path.name + ".1"))


def last_words(path: Path, start: int = 0) -> str:
    """The last line that a process wrote after byte `start` that says something, shortened; empty if none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if words := _words(line.strip()):
            return words[:400]
    return ""


def _words(line: str) -> str:
    """What a line says: of a JSON line the event, and its exception's last line."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict):
        return line
    exception = str(record.get("exception", "")).strip().splitlines()
    said = [str(record.get("event", "")), str(record.get("fault", "")), exception[-1] if exception else ""]
    return ": ".join(part for part in said if part)
