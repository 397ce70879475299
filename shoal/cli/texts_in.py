"""Reads the texts of `shoal encode`: from arguments, a stream of lines, or a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class NamedText(NamedTuple):
    """A text and the caller's name of it, None if it has none."""

    text: str
    id: str | int | None = None


def from_lines(lines: Iterable[bytes], source: str) -> Iterator[NamedText]:
    """A text a line, without its line end. Raises ValueError naming the line that is not UTF-8."""
    for number, line in enumerate(lines, 1):
        yield NamedText(_decoded(line, source, number).removesuffix("\n").removesuffix("\r"))


def from_jsonl(lines: Iterable[bytes], source: str) -> Iterator[NamedText]:
    """A text a line: a JSON string, or an object with "text" and perhaps "id". Blank lines are skipped.

    Raises ValueError naming the line that is neither.
    """
    for number, line in enumerate(lines, 1):
        content = _decoded(line, source, number).strip()
        if not content:
            continue
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{source}, line {number} is not JSON: {error}") from None
        if isinstance(value, str):
            yield NamedText(value)
            continue
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise ValueError(f'{source}, line {number} is neither a string nor an object with a string "text"')
        name = value.get("id")
        if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
            raise ValueError(f'{source}, line {number} has an "id" that is neither a string nor a whole number')
        yield NamedText(value["text"], name)


def _decoded(line: bytes, source: str, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}, line {number} is not UTF-8 (byte {error.start + 1})") from None
