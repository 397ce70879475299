"""A mesh's start on a terminal: a line for each process, and afterwards one for each thing that happens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from shoal_supervisor.happenings import happenings
from shoal_supervisor.status_file import MeshStatus, ProcessStatus

FRAMES_PER_SECOND = 10


class StartDisplay:
    """Shows statuses. On a terminal the start is one table that fills; elsewhere it is lines."""

    def __init__(self, console: Console, models: Sequence[str]) -> None:
        self._console = console
        self._models = ", ".join(models)
        self._status: MeshStatus | None = None
        self._live = Live(
            get_renderable=self._table, console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True
        )
        # One each for as long as the table is shown: a new spinner would begin its turn anew.
        self._spinners: dict[str, Spinner] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, status: MeshStatus) -> None:
        """The mesh as it is now."""
        before, self._status = self._status, status
        if status.state == "starting":
            if self._console.is_terminal:
                self._live.start()
            elif before is not None:
                self._tell(before, status, "")
            return
        if self._live.is_started:
            self._live.stop()
            self._console.print(self._table())
        if status.state == "stopping" and (before is None or before.state != "stopping") and not status.reason:
            self.say("Stopping (Ctrl-C again kills)")
        elif before is not None and before.state == status.state == "ready":
            self._tell(before, status, time.strftime("%H:%M:%S  "))

    def _tell(self, before: MeshStatus, status: MeshStatus, prefix: str) -> None:
        for line in happenings(before, status):
            self.say(prefix + line)

    def _table(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for process in self._status.processes if self._status else ():
            table.add_row(self._mark(process), process.name, _progress(process))
        if self._status and self._status.all_ready and self._models:
            loading = self._status.state == "starting"
            table.add_row(
                self._spinner("models") if loading else _TICK,
                "models",
                Text(f"loading {self._models}" if loading else self._models, "dim"),
            )
        return Group(table)

    def _mark(self, process: ProcessStatus) -> RenderableType:
        if process.state == "ready":
            return _TICK
        return Text("✗", "red") if process.state in ("restarting", "stopped") else self._spinner(process.name)

    def _spinner(self, name: str) -> Spinner:
        return self._spinners.setdefault(name, Spinner("dots"))


_TICK = Text("✓", "green")


def _progress(process: ProcessStatus) -> Text:
    if process.state == "ready":
        return Text(f"{process.ready_s or 0:.1f} s", "dim")
    if process.last_exit:
        return Text(f"{process.state}, it ended with {process.last_exit}", "yellow")
    return Text(process.state, "dim")
