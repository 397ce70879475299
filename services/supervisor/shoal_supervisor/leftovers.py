"""Processes that outlive a killed supervisor for a moment: waited for, since two meshes must not share a folder.

Every process of a mesh inherits a descriptor of the folder's `alive` file, with a shared lock on it. The
lock is free for a new supervisor when the last of them is gone, whoever their parent was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator

import psutil

from shoal_supervisor.errors import CannotStart
from shoal_supervisor.state import StateFolder

MARKER = "SHOAL_SUPERVISED_IN"
"""The environment variable that names the state folder in every process of a mesh."""
# A service whose parent is gone has three seconds to end; then it ends itself.
END_S = 6.0
KILLED_S = 4.0


@contextlib.contextmanager
def alive_lock(state: StateFolder) -> Iterator[int]:
    """A descriptor for children to inherit, once nothing of an earlier run is left.

    Raises:
        CannotStart: processes of an earlier run do not end, even when killed.
    """
    with state.alive.open("ab") as file:
        if not _nothing_left(file.fileno(), END_S):
            for pid in leftovers(state):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not _nothing_left(file.fileno(), KILLED_S):
                pids = ", ".join(map(str, leftovers(state))) or "unknown"
                raise CannotStart(f"processes of the last run in {state.path} do not end: kill them (pids {pids})")
        fcntl.flock(file, fcntl.LOCK_SH)
        yield file.fileno()


def leftovers(state: StateFolder) -> list[int]:
    """Pids of processes that were started for this state folder, and live."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(MARKER) == str(state.path)
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _nothing_left(alive: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
            continue
        return True
