"""When a process that ended may start again."""

from __future__ import annotations

FIRST_S = 0.1
LONGEST_S = 5.0
HEALTHY_S = 30.0


class Backoff:
    """Spaces the starts of one process: none at first, then 0.1 s doubling to 5 s, forgotten after 30 s of health.

    The space is counted from the last start, so that a process which lived longer starts again at once:
    a crash loop is slowed, a kill now and then is not.
    """

    def __init__(self) -> None:
        self._space_s = 0.0
        self._started_s = 0.0
        self._ready_s: float | None = None

    def started(self, now_s: float) -> None:
        """The process was started."""
        self._started_s = now_s
        self._ready_s = None

    def ready(self, now_s: float) -> None:
        """The process says that it is well."""
        if self._ready_s is None:
            self._ready_s = now_s

    def not_ready(self) -> None:
        """The process says that it is not well."""
        self._ready_s = None

    def ended(self, now_s: float) -> float:
        """The process ended; seconds to wait before the next start."""
        if self._ready_s is not None and now_s - self._ready_s >= HEALTHY_S:
            self._space_s = 0.0
        wait_s = max(0.0, self._started_s + self._space_s - now_s)
        self._space_s = min(LONGEST_S, max(FIRST_S, 2 * self._space_s))
        return wait_s
