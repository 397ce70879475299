"""The poison of fault tests."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from shoal_torch_runtime import faults
from shoal_torch_runtime.packed_batch import PackedBatch


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that would have been sent."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def test_no_poison_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    assert faults.poison() is None


def test_only_the_whole_row_kills(monkeypatch: pytest.MonkeyPatch, kills: list[tuple[int, int]]):
    monkeypatch.setenv(faults.VARIABLE, "101,7592,102")
    poison = faults.poison()
    assert poison is not None
    inside = PackedBatch(np.array([5, 101, 7592, 102], np.int32), np.array([4], np.int32))
    faults.die_if_poisoned(inside, poison)
    assert kills == []
    as_row = PackedBatch(inside.token_ids, np.array([1, 3], np.int32))
    faults.die_if_poisoned(as_row, poison)
    assert kills == [(os.getpid(), signal.SIGKILL)]
