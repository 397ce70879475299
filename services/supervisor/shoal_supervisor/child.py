"""One process of the mesh over all its lives: started, watched, and started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import STDOUT, Process
from collections.abc import Callable
from pathlib import Path

from shoal_supervisor import health_watch, log_files
from shoal_supervisor.backoff import Backoff
from shoal_supervisor.lifecycle import Lifecycle, exit_reason
from shoal_supervisor.plan import ProcessPlan
from shoal_supervisor.status_file import ProcessStatus

UNGUARDED_S = 1.0


class Child:
    """A process that is kept alive.

    Its standard input is a pipe whose other end only the supervisor has: it closes with the supervisor,
    and then the process ends itself.
    """

    def __init__(self, plan: ProcessPlan, log: Path, alive: int, changed: Callable[[], None]) -> None:
        """`alive` is a descriptor for the process to inherit; `changed` is called after each change of state."""
        self.plan = plan
        self.life = Lifecycle()
        self._log = log
        self._log_start = 0
        self._alive = alive
        self._changed = changed
        self._backoff = Backoff()
        self._process: Process | None = None
        self._health: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def status(self) -> ProcessStatus:
        """As it is now."""
        return ProcessStatus(
            name=self.plan.name,
            state=self.life.state,
            pid=self.life.pid,
            restarts=self.life.restarts,
            since=self.life.since,
            ready_s=self.life.ready_s,
            last_exit=self.life.last_exit,
            listen=self.plan.listen,
            log=str(self._log),
        )

    @property
    def hopeless(self) -> str | None:
        """Why the process never came up, with its last words; None while it may."""
        if self.life.hopeless is None:
            return None
        words = log_files.last_words(self._log, self._log_start)
        return f"{self.plan.name} does not start ({self.life.hopeless}){': ' + words if words else ''}; see {self._log}"

    async def run(self) -> None:
        """Keeps the process alive until `stop`."""
        try:
            while not self._stop.is_set():
                reason, status = await self._live()
                if self._stop.is_set():
                    break
                self.life.ended(reason, status, time.time())
                self._changed()
                wait_s = self._backoff.ended(time.monotonic())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stop.wait()
            self.life.stopped(time.time())
            self._changed()
        finally:
            self.kill()
            self._over.set()

    async def stop(self, grace_s: float) -> None:
        """Ends the process and its descendants: asked first, killed after `grace_s`."""
        self._stop.set()
        if self._health is not None:
            # Else a server would wait for this stream before it ends.
            self._health.cancel()
            await asyncio.wait([self._health])
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._over.wait()
        except TimeoutError:
            self.kill()
            await self._over.wait()

    def bound_log(self) -> None:
        """Cuts the log if it has grown too long."""
        if log_files.bound(self._log):
            self._log_start = 0

    def kill(self) -> None:
        """Kills the process and its descendants at once, for good."""
        self._stop.set()
        if self._process is not None:
            _kill_group(self._process.pid)

    async def _live(self) -> tuple[str, int | None]:
        """One life, from spawn to exit: how it ended, and its exit status."""
        self._backoff.started(time.monotonic())
        read_end, write_end = os.pipe()
        try:
            try:
                process = await self._spawn(read_end)
            except OSError as error:
                return f"cannot be run: {error.strerror}", None
            finally:
                os.close(read_end)
            return await self._until_exit(process, write_end)
        finally:
            os.close(write_end)

    async def _spawn(self, read_end: int) -> Process:
        self.bound_log()
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            return await asyncio.create_subprocess_exec(
                *self.plan.command,
                env=self.plan.environment,
                stdin=read_end,
                stdout=log,
                stderr=STDOUT,
                pass_fds=(self._alive,),
                # A group of its own: Ctrl-C reaches the supervisor alone, which stops all in order.
                process_group=0,
            )

    async def _until_exit(self, process: Process, write_end: int) -> tuple[str, int | None]:
        loop = asyncio.get_running_loop()
        self._process = process
        self.life.spawned(process.pid, time.time())
        self._changed()
        self._health = asyncio.create_task(self._watch_health())
        loop.add_reader(write_end, self._unguarded, process, write_end)
        if self._stop.is_set():
            self.kill()
        try:
            returncode = await process.wait()
        finally:
            loop.remove_reader(write_end)
            self._health.cancel()
            await asyncio.wait([self._health])
            # What it started must not live beside what its successor starts.
            _kill_group(process.pid)
            self._process = None
        return exit_reason(returncode), returncode if returncode >= 0 else None

    def _unguarded(self, process: Process, write_end: int) -> None:
        """Nobody reads the pipe any more: the process is ending, or would outlive a killed supervisor."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(write_end)
        loop.call_later(UNGUARDED_S, self._end_unguarded, process)

    def _end_unguarded(self, process: Process) -> None:
        if process is self._process and not self._stop.is_set():
            _kill_group(process.pid)

    async def _watch_health(self) -> None:
        if self.plan.listen.startswith("nats://"):
            await health_watch.watch_nats(self.plan.listen, self.plan.token, self._serving)
        else:
            await health_watch.watch_grpc(self.plan.listen, self._serving)

    def _serving(self, serving: bool) -> None:
        if serving:
            self._backoff.ready(time.monotonic())
        else:
            self._backoff.not_ready()
        self.life.serving(serving, time.time())
        self._changed()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
