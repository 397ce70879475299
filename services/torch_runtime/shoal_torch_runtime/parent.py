"""The warm parent: holds the imports, forks runtimes on command, and says when they end.

It makes no gRPC channel and no thread, and computes nothing: a fork copies only the thread that called it, and
OpenMP's or gRPC's threads that a child misses would hang it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import selectors
import signal
import time
from dataclasses import dataclass

from shoal_torch_runtime import child
from shoal_torch_runtime.commands import Fork, Kill, Lines, parse
from shoal_torch_runtime.errors import CommandError

_READ_BYTES = 64 * 1024
_GRACE_S = 2.0
"""How long runtimes may take to end by themselves once stdin is closed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Child:
    id: str
    pid: int
    pidfd: int


class Parent:
    """Reads commands from one file descriptor and writes events to another, one JSON object a line."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands = commands
        self._events = events
        self._lines = Lines()
        self._children: dict[str, _Child] = {}
        self._life_read, self._life_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands, selectors.EVENT_READ)

    def run(self) -> None:
        """Serves until the commands end, then ends the children."""
        gc.collect()
        gc.freeze()  # a collection in a child would write to, and so copy, pages that all share
        self._say(event="warm", pid=os.getpid())
        while self._commands in self._selector.get_map():
            self._step(None)
        self._end_children()

    def _step(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._commands:
                self._read()
            else:
                self._reap(key.data)

    def _read(self) -> None:
        data = os.read(self._commands, _READ_BYTES)
        if not data:
            self._selector.unregister(self._commands)
        for line in self._lines.feed(data):
            try:
                self._follow(line)
            except CommandError as error:
                self._say(event="error", id=error.id, message=str(error))

    def _follow(self, line: bytes | CommandError) -> None:
        if isinstance(line, CommandError):
            raise line
        match parse(line):
            case Fork() as fork:
                self._fork(fork)
            case Kill(id=name):
                if name not in self._children:
                    raise CommandError(f"no runtime {name!r} is running", name)
                signal.pidfd_send_signal(self._children[name].pidfd, signal.SIGKILL)

    def _fork(self, fork: Fork) -> None:
        if fork.id in self._children:
            raise CommandError(f"a runtime {fork.id!r} is running already", fork.id)
        try:
            pid = os.fork()
        except OSError as error:
            raise CommandError(f"fork failed: {error}", fork.id) from None
        if pid == 0:
            self._become(fork)
        started = _Child(fork.id, pid, os.pidfd_open(pid))
        self._children[fork.id] = started
        self._selector.register(started.pidfd, selectors.EVENT_READ, started)
        self._say(event="forked", id=fork.id, pid=pid)

    def _become(self, fork: Fork) -> None:
        """In the child: lets go of what is the parent's, serves, and never returns."""
        status = 1
        try:
            self._selector.close()
            os.close(self._life_write)
            os.close(self._events)
            for other in self._children.values():
                os.close(other.pidfd)
            status = child.run(fork, self._life_read)
        except BaseException:
            _log.exception("the runtime failed", extra={"runtime": fork.id})
        finally:
            os._exit(status)

    def _reap(self, ended: _Child) -> None:
        self._selector.unregister(ended.pidfd)
        os.close(ended.pidfd)
        del self._children[ended.id]
        _, status = os.waitpid(ended.pid, 0)
        self._say(event="exited", id=ended.id, pid=ended.pid, status=os.waitstatus_to_exitcode(status))

    def _end_children(self) -> None:
        os.close(self._life_write)
        deadline = time.monotonic() + _GRACE_S
        while self._children and (left_s := deadline - time.monotonic()) > 0:
            self._step(left_s)
        for left in list(self._children.values()):
            signal.pidfd_send_signal(left.pidfd, signal.SIGKILL)
            select.select([left.pidfd], [], [])
            self._reap(left)

    def _say(self, **event: object) -> None:
        try:
            os.write(self._events, json.dumps(event).encode() + b"\n")
        except BrokenPipeError:
            _log.warning("nobody reads events", extra={"lost": event})
