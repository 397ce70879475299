"""The warm parent's language: commands that it reads, one JSON object a line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from shoal_torch_runtime.errors import CommandError

LINE_BYTES = 64 * 1024
SOCKET_PATH_BYTES = 107
"""Linux: sun_path has 108 bytes, the last a NUL."""
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Fork:
    """Start a runtime."""

    id: str
    socket: str
    device: str
    streams: int
    threads: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a runtime at once."""

    id: str


Command = Fork | Kill


def parse(line: bytes) -> Command:
    """Reads a line.

    Raises:
        CommandError: says what is wrong with it.
    """
    try:
        data = json.loads(line)
    except ValueError as error:
        raise CommandError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise CommandError("not a JSON object")
    try:
        return _command(data)
    except CommandError as error:
        error.id = name if isinstance(name := data.get("id"), str) else None
        raise


def _command(data: dict[str, Any]) -> Command:
    match data.get("command"):
        case "fork":
            return _fork(data)
        case "kill":
            return Kill(_text(data, "id"))
        case other:
            raise CommandError(f"command must be fork or kill, got {other!r}")


def _fork(data: dict[str, Any]) -> Fork:
    socket = _text(data, "socket")
    if len(socket.encode()) > SOCKET_PATH_BYTES:
        raise CommandError(f"socket has {len(socket.encode())} bytes, at most {SOCKET_PATH_BYTES} are allowed")
    device = _text(data, "device")
    if not _DEVICE.fullmatch(device):
        raise CommandError(f"device must be cpu, cuda or cuda:N, got {device!r}")
    return Fork(_text(data, "id"), socket, device, _count(data, "streams", 64), _count(data, "threads", 256))


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise CommandError(f"{key} must be a text that is not empty, got {value!r}")
    return value


def _count(data: dict[str, Any], key: str, most: int) -> int:
    value = data.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise CommandError(f"{key} must be a whole number from 1 to {most}, got {value!r}")
    return value


class Lines:
    """Cuts a stream of bytes into lines. A line over LINE_BYTES is refused, and skipped to its end."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | CommandError]:
        """Takes bytes as they come and returns the lines that are now whole, blank ones left out."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if whole and self._skipping:
            whole, self._skipping = whole[1:], False
        found: list[bytes | CommandError] = [_checked(line) for line in whole if line.strip()]
        if len(self._rest) > LINE_BYTES:
            if not self._skipping:
                found.append(_too_long())
            self._rest, self._skipping = b"", True
        return found


def _checked(line: bytes) -> bytes | CommandError:
    return line if len(line) <= LINE_BYTES else _too_long()


def _too_long() -> CommandError:
    return CommandError(f"a line has at most {LINE_BYTES} bytes")
