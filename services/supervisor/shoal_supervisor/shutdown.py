"""Ends the mesh of a state folder from outside its supervisor."""

from __future__ import annotations

import os
import signal
import time

from shoal_supervisor.state import StateFolder

POLL_S = 0.05


class NotStopped(Exception):
    """A mesh could not be ended; its text is one line for the person who asked."""


def stop_mesh(state: StateFolder, timeout_s: float) -> bool:
    """Asks the supervisor to stop and waits until it is gone; False when none was there.

    A supervisor that takes longer is killed: what it started then ends itself.

    Raises:
        NotStopped: the supervisor is another user's.
    """
    pid = state.holder()
    if pid is None:
        return False
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return True
        except PermissionError:
            raise NotStopped(f"the mesh in {state.path} belongs to another user (pid {pid})") from None
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if state.holder() != pid:
                return True
            time.sleep(POLL_S)
    raise NotStopped(f"the supervisor of {state.path} (pid {pid}) does not end, even when killed")
