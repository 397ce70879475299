"""Faults for tests: what kills the process, as a batch or weights that break a driver would. Off unless asked for.

SHOAL_FAULT_POISON="101,7592,102" names the token ids of a row that kills when it is computed, SHOAL_FAULT_LOAD="minilm"
a model that kills when it is loaded.
"""

from __future__ import annotations

import json
import os
import signal

import numpy as np

from shoal_torch_runtime.packed_batch import PackedBatch

POISON_VARIABLE = "SHOAL_FAULT_POISON"
LOAD_VARIABLE = "SHOAL_FAULT_LOAD"


def poison() -> np.ndarray | None:
    """The row that kills, int32 of shape (tokens,); None when the environment names none."""
    text = os.environ.get(POISON_VARIABLE)
    return np.array([int(token) for token in text.split(",")], np.int32) if text else None


def die_if_poisoned(batch: PackedBatch, poison: np.ndarray) -> None:
    """Ends this process by SIGKILL if a row is exactly the poison."""
    candidates = np.flatnonzero(batch.lengths == len(poison)).tolist()
    if any(np.array_equal(batch.row(row), poison) for row in candidates):
        os.kill(os.getpid(), signal.SIGKILL)


def die_if_deadly(profile_json: str) -> None:
    """Ends this process by SIGKILL if the environment names this profile's model."""
    name = os.environ.get(LOAD_VARIABLE)
    if name and json.loads(profile_json).get("name") == name:
        os.kill(os.getpid(), signal.SIGKILL)
