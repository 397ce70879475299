"""The warm parent's commands, line by line."""

from __future__ import annotations

import json

import pytest

from shoal_torch_runtime.commands import LINE_BYTES, Fork, Kill, Lines, parse
from shoal_torch_runtime.errors import CommandError

FORK = {"command": "fork", "id": "r1", "socket": "/run/r1", "device": "cpu", "streams": 2, "threads": 2}


def test_fork_is_read():
    assert parse(json.dumps(FORK).encode()) == Fork("r1", "/run/r1", "cpu", 2, 2)


def test_kill_is_read():
    assert parse(b'{"command": "kill", "id": "r1"}') == Kill("r1")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"command": "stop"}, "command must be fork or kill"),
        ({"id": ""}, "id must be"),
        ({"id": 7}, "id must be"),
        ({"socket": "/" + "x" * 107}, "socket has 108 bytes, at most 107"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "cuda:x"}, "device must be"),
        ({"streams": 0}, "streams must be"),
        ({"streams": True}, "streams must be"),
        ({"threads": "2"}, "threads must be"),
        ({"threads": 1000}, "threads must be"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], says: str):
    with pytest.raises(CommandError, match=says) as refused:
        parse(json.dumps(FORK | change).encode())
    assert refused.value.id == (None if change.get("id") == 7 else change.get("id", "r1"))


@pytest.mark.parametrize("line", [b"fork", b"[]", b"\xff", b'{"command": "fork"'])
def test_what_is_no_json_object_is_refused(line: bytes):
    with pytest.raises(CommandError, match="not") as refused:
        parse(line)
    assert refused.value.id is None


def test_lines_are_cut_wherever_the_pipe_cuts_them():
    text = b"one\n\ntwo\nthree\n"
    for cut in range(len(text)):
        lines = Lines()
        assert lines.feed(text[:cut]) + lines.feed(text[cut:]) == [b"one", b"two", b"three"]


def test_an_endless_line_is_refused_once_and_skipped():
    lines = Lines()
    found = lines.feed(b"x" * (LINE_BYTES + 1))
    assert [type(line) for line in found] == [CommandError]
    assert lines.feed(b"y" * (LINE_BYTES + 1)) == []
    assert lines.feed(b"z\nnext\n") == [b"next"]
