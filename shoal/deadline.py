"""The time by which a call must have ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.errors import DeadlineExceeded

REQUEST_MAX_S = 600.0
"""The longest that a mesh works on one request."""


class Deadline:
    """Ends `timeout_s` seconds after it was made; with None never, then each request has REQUEST_MAX_S."""

    def __init__(self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._end = None if timeout_s is None else clock() + timeout_s

    def left_s(self) -> float:
        """Seconds that the next request may take, above 0.

        Raises DeadlineExceeded if there are none.
        """
        if self._end is None:
            return REQUEST_MAX_S
        left = self._end - self._clock()
        if left <= 0:
            raise self.exceeded()
        return min(left, REQUEST_MAX_S)

    def allows(self, wait_s: float) -> bool:
        """Whether there is time left after a wait of so many seconds."""
        return self._end is None or self._clock() + wait_s < self._end

    def exceeded(self) -> DeadlineExceeded:
        """The error to raise when it has passed."""
        limit = REQUEST_MAX_S if self._timeout_s is None else self._timeout_s
        return DeadlineExceeded(f"no answer within {limit:g} s (see timeout)", code="DEADLINE_EXCEEDED")
