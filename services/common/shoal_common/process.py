"""A service's process: its event loop, what makes it stop, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop
from pydantic import ValidationError

from shoal_common import logs
from shoal_common.settings import ServiceSettings

log = logs.get("process")
Settings = TypeVar("Settings", bound=ServiceSettings)


class Stop:
    """Set once, by a signal, by the parent's end, or by a fault that only a new process mends."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.fault: str | None = None

    def now(self, fault: str | None = None) -> None:
        """Asks the process to end; with a fault its exit status is 1."""
        self.fault = self.fault or fault
        self._event.set()

    async def wait(self) -> None:
        """Returns when the process is to end."""
        await self._event.wait()


def run(name: str, settings_type: type[Settings], main: Callable[[Settings, Stop], Awaitable[None]]) -> None:
    """Runs a service until it is told to stop; never returns.

    Exit status: 0 after a stop, 1 after a fault, 2 when the settings are wrong (each named on stderr).
    """
    try:
        settings = settings_type()  # pyright: ignore[reportCallIssue] - fields come from the environment
    except ValidationError as error:
        for e in error.errors():
            print(f"shoal {name}: SHOAL_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}", file=sys.stderr)
        raise SystemExit(2) from None
    logs.configure(name, settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_supervised(name, settings, main))
    # Threads of libraries (grpc's, obstore's) must not keep a finished process alive.
    sys.stderr.flush()
    os._exit(status)


async def _supervised(name: str, settings: Settings, main: Callable[[Settings, Stop], Awaitable[None]]) -> int:
    stop = Stop()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.now)
    if settings.exit_with_parent:
        loop.add_reader(sys.stdin.fileno(), _read_parent, loop, stop)
    try:
        await main(settings, stop)
    except Exception as error:
        log.error("service ended by a fault", service=name, exc_info=error)
        return 1
    if stop.fault:
        log.error("service ends to be started anew", service=name, fault=stop.fault)
        return 1
    return 0


def _read_parent(loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.now()
        # A process that is stuck must not outlive its parent.
        loop.call_later(3.0, os._exit, 1)
