"""Starts the warm parent: `python -m shoal_torch_runtime`, commands on stdin, events on stdout, logs on stderr."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Imports what runtimes need, then serves commands until stdin is closed."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's OpenBLAS would start a thread, and forks want none
    # How often OpenMP threads look before they sleep at a barrier, here for some 0.3 ms. By default they spin for
    # milliseconds, and where other processes want the cores too, against the very thread they wait for: beside one busy
    # core a forward of 20 tokens then takes 8 times as long, with this 3 times. To sleep sooner costs more: where a
    # thread takes long to wake, as on some virtual machines, an idle one's forward took 1.6 times as long with 1000.
    os.environ.setdefault("GOMP_SPINCOUNT", "6000")
    os.environ["HF_HUB_OFFLINE"] = "1"  # models come from folders: nothing here goes to the network
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the sidecar's, which then closes stdin
    events = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not stand between events

    from shoal_torch_runtime import logs, warm
    from shoal_torch_runtime.parent import Parent

    logs.configure()
    warm.quieten()
    Parent(commands=0, events=events).run()
    # The interpreter's own end would run what extension modules left for it: nanobind prints what it takes for leaks.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
