"""A forked runtime, from the fork to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

import uvloop

from shoal_torch_runtime.commands import Fork
from shoal_torch_runtime.server import serve

_log = logging.getLogger(__name__)


def run(fork: Fork, life: int) -> int:
    """Serves until the sidecar's stream ends.

    Args:
        life: Read end of a pipe that the parent alone holds open: it closes when the parent ends, however it does.

    Returns:
        The exit status.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # A thread, since the event loop may be busy, and a signal on the parent's death would follow its thread.
    threading.Thread(target=_end_with_parent, args=(life,), name="life", daemon=True).start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(fork.socket, fork.device, fork.streams, fork.threads))
    except Exception:
        _log.exception("the runtime failed", extra={"runtime": fork.id, "socket": fork.socket})
        return 1
    return 0


def _end_with_parent(life: int) -> None:
    os.read(life, 1)
    os._exit(0)
