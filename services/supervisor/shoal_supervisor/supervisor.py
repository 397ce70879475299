"""All processes of a mesh: started together, kept alive, stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from shoal_supervisor import status_file
from shoal_supervisor.child import Child
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.plan import ProcessPlan, Stage
from shoal_supervisor.state import StateFolder
from shoal_supervisor.status_file import MeshStatus

# A second more than a service gives its calls in flight.
STOP_GRACE_S = 6.0
LOGS_PERIOD_S = 30.0


class Supervisor:
    """Runs a plan. Statuses go to status.json and to `report`."""

    def __init__(
        self,
        plan: Sequence[ProcessPlan],
        state: StateFolder,
        alive: int,
        address: str,
        report: Callable[[MeshStatus], None],
    ) -> None:
        self._children = [Child(each, state.log(each.name), alive, self._changed) for each in plan]
        self._state = state
        self._report = report
        self._progress = asyncio.Event()
        self.status = MeshStatus(
            state="starting",
            reason=None,
            pid=os.getpid(),
            address=address,
            started=time.time(),
            ready_s=None,
            processes=(),
        )

    async def run(self, stop: asyncio.Event, complete: Callable[[], Awaitable[None]]) -> None:
        """Starts all and keeps them alive until `stop` is set; returns when all have ended.

        `complete` is awaited once all processes are ready: what else must be before the mesh is.

        Raises:
            CannotStart: a process cannot be started, or `complete` raised it. Nothing is left running.
        """
        self._update(state="starting")
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(child.run())
            bounding = group.create_task(self._bound_logs())
            reason = None
            try:
                await _unless(stop, self._started(complete))
                await stop.wait()
            except CannotStart as error:
                reason = str(error)
            await self._stop_all(reason)
            bounding.cancel()
        if reason:
            raise CannotStart(reason)

    def kill(self) -> None:
        """Kills every process at once; `run` then returns soon."""
        for child in self._children:
            child.kill()

    async def _started(self, complete: Callable[[], Awaitable[None]]) -> None:
        while not self.status.all_ready:
            self._progress.clear()
            await self._progress.wait()
            for child in self._children:
                if child.hopeless:
                    raise CannotStart(child.hopeless)
        await complete()
        self._update(state="ready", ready_s=time.time() - self.status.started)

    async def _stop_all(self, reason: str | None) -> None:
        self._update(state="stopping", reason=reason)
        for stage in Stage:
            members = [child for child in self._children if child.plan.stage is stage]
            await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in members))
        self._update(state="failed" if reason else "stopped")

    async def _bound_logs(self) -> None:
        """Keeps the logs of processes that live long in bounds, for ever."""
        while True:
            await asyncio.sleep(LOGS_PERIOD_S)
            for child in self._children:
                child.bound_log()

    def _changed(self) -> None:
        self._update()
        self._progress.set()

    def _update(self, **changes: object) -> None:
        """Tells the world, if anything is new."""
        processes = tuple(child.status for child in self._children)
        status = self.status.model_copy(update={**changes, "processes": processes})
        if status != self.status:
            self.status = status
            with contextlib.suppress(OSError):  # a full disk must not end the mesh
                status_file.write(self._state.status, status)
            self._report(status)


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Awaits the work, but no longer than until `stop` is set; raises what it raises."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        working.cancel()
        stopping.cancel()
