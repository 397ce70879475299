"""Faults for tests: a row that kills the process, as a batch that breaks a driver would. Off unless asked for.

SHOAL_FAULT_POISON="101,7592,102" names the token ids of the row.
"""

from __future__ import annotations

import os
import signal

import numpy as np

from shoal_torch_runtime.packed_batch import PackedBatch

VARIABLE = "SHOAL_FAULT_POISON"


def poison() -> np.ndarray | None:
    """The row that kills, int32 of shape (tokens,); None when the environment names none."""
    text = os.environ.get(VARIABLE)
    return np.array([int(token) for token in text.split(",")], np.int32) if text else None


def die_if_poisoned(batch: PackedBatch, poison: np.ndarray) -> None:
    """Ends this process by SIGKILL if a row is exactly the poison."""
    candidates = np.flatnonzero(batch.lengths == len(poison)).tolist()
    if any(np.array_equal(batch.row(row), poison) for row in candidates):
        os.kill(os.getpid(), signal.SIGKILL)
