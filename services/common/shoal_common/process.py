"""A service's process: its event loop, what makes it stop, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop
from pydantic import ValidationError

from shoal_common import logs, telemetry
from shoal_common.settings import ServiceSettings

log = logs.get("process")
Settings = TypeVar("Settings", bound=ServiceSettings)
DRAIN_S = 5.5
"""From a stop to the end: more than any service gives its calls in flight."""


class Stop:
    """Set once, by a signal, by the parent's end, or by a fault that only a new process mends."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.fault: str | None = None
        self.is_heeded = False
        """Whether the service stands and ends in order when it is told to."""

    def now(self, fault: str | None = None) -> None:
        """Asks the process to end; with a fault its exit status is 1."""
        self.fault = self.fault or fault
        self._event.set()

    async def wait(self) -> None:
        """Returns when the process is to end. From the first call on it is the service's own part to end in time."""
        self.is_heeded = True
        await self._event.wait()


Main = Callable[[Settings, Stop], Coroutine[Any, Any, None]]
"""A service: it runs until its Stop is set."""


def run(name: str, settings_type: type[Settings], main: Main[Settings]) -> None:
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
    gc.freeze()  # Modules stay: nobody looks through them for garbage again and again.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_supervised(name, settings, main))
    telemetry.flush()
    # Threads of libraries (grpc's, obstore's) must not keep a finished process alive.
    sys.stderr.flush()
    os._exit(status)


async def _supervised(name: str, settings: Settings, main: Main[Settings]) -> int:
    stop = Stop()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.now)
    if settings.exit_with_parent:
        loop.add_reader(sys.stdin.fileno(), _read_parent, loop, stop)
    try:
        await _until_stopped(main(settings, stop), stop)
    except Exception as error:
        log.error("service ended by a fault", service=name, exc_info=error)
        return 1
    if stop.fault:
        log.error("service ends to be started anew", service=name, fault=stop.fault)
        return 1
    return 0


async def _until_stopped(service: Coroutine[Any, Any, None], stop: Stop) -> None:
    """Runs the service. After a stop it has its time to drain; one that still waits for others has nothing to."""
    running = asyncio.create_task(service)
    asked = asyncio.create_task(stop._event.wait())
    await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not running.done() and stop.is_heeded:
        await asyncio.wait((running,), timeout=DRAIN_S)
        if not running.done():
            log.warning("service was not done in time", drain_s=DRAIN_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _read_parent(loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.now()
        # A process that is stuck must not outlive its parent.
        loop.call_later(3.0, os._exit, 1)
