"""What one process is doing: its state as health and exits change it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "not_serving", "restarting", "stopped"]
FAILED_STARTS = 3
WRONG_SETTINGS = 2
"""Exit status of a service whose settings are wrong: another start will not mend it."""


@dataclass
class Lifecycle:
    """States of one process over all its lives. Times are seconds since 1970."""

    state: State = "starting"
    since: float = 0.0
    pid: int | None = None
    restarts: int = 0
    ready_s: float | None = None
    """How long the last start took, from spawn to ready."""
    last_exit: str | None = None
    was_ready: bool = False
    """In any of its lives."""
    hopeless: str | None = None
    """Why it never came up; None while it may."""
    _failed_starts: int = 0
    _spawned: float = 0.0

    def spawned(self, pid: int, now: float) -> None:
        """It runs."""
        self.pid, self._spawned, self.ready_s = pid, now, None
        self._enter("starting", now)

    def serving(self, serving: bool, now: float) -> None:
        """It answered, or did not, whether it serves."""
        if self.pid is None:
            return
        if serving:
            if self.ready_s is None:
                self.ready_s = now - self._spawned
            self.was_ready = True
            self._enter("ready", now)
        elif self.state == "ready":
            self._enter("not_serving", now)

    def ended(self, reason: str, status: int | None, now: float) -> None:
        """It ended without being asked to; `status` is its exit status, None where there is none."""
        self.pid, self.last_exit = None, reason
        self.restarts += 1
        self._enter("restarting", now)
        if not self.was_ready:
            self._failed_starts += 1
            if status == WRONG_SETTINGS or self._failed_starts >= FAILED_STARTS:
                self.hopeless = reason

    def stopped(self, now: float) -> None:
        """It ended because it was to."""
        self.pid = None
        self._enter("stopped", now)

    def _enter(self, state: State, now: float) -> None:
        if self.state != state or not self.since:
            self.state, self.since = state, now


def exit_reason(returncode: int) -> str:
    """A return code as subprocess gives it, in words."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
