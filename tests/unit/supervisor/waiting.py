"""Waits for conditions: tests never sleep for a time and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
POLL_S = 0.02


def until(condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """The condition's first true value; fails the test when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether a process is no more; a zombie is none."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
