"""Log files of processes: their bound, and their last words."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

KEPT_BYTES = 20_000_000
TAIL_BYTES = 8_192


def bound(path: Path) -> bool:
    """Empties a file that has grown too long, whether it was; a copy of its end is kept.

    Its process goes on appending to the same file, so what it writes between copy and cut is lost.
    """
    with contextlib.suppress(OSError):  # a full disk must not end the mesh: the file is cut next time
        if path.stat().st_size > KEPT_BYTES:
            with path.open("rb") as log, path.with_name(path.name + ".1").open("wb") as old:
                log.seek(-KEPT_BYTES, os.SEEK_END)
                shutil.copyfileobj(log, old)
            os.truncate(path, 0)
            return True
    return False


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
    """What a line says: of a JSON line the event or message, and the fault, error, or exception's last line."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict):
        return line
    exception = str(record.get("exception", "")).strip().splitlines()
    # The sidecar's lines have message and error where the services' have event and fault.
    said = [str(record.get(key, "")) for key in ("event", "message", "fault", "error")]
    return ": ".join(part for part in (*said, exception[-1] if exception else "") if part)
