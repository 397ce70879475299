"""What kills a runtime in fault tests."""

from __future__ import annotations

import json
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
    monkeypatch.delenv(faults.POISON_VARIABLE, raising=False)
    assert faults.poison() is None


def test_only_the_whole_row_kills(monkeypatch: pytest.MonkeyPatch, kills: list[tuple[int, int]]):
    monkeypatch.setenv(faults.POISON_VARIABLE, "101,7592,102")
    poison = faults.poison()
    assert poison is not None
    inside = PackedBatch(np.array([5, 101, 7592, 102], np.int32), np.array([4], np.int32))
    faults.die_if_poisoned(inside, poison)
    assert kills == []
    as_row = PackedBatch(inside.token_ids, np.array([1, 3], np.int32))
    faults.die_if_poisoned(as_row, poison)
    assert kills == [(os.getpid(), signal.SIGKILL)]


def test_only_the_model_that_is_named_kills(monkeypatch: pytest.MonkeyPatch, kills: list[tuple[int, int]]):
    monkeypatch.delenv(faults.LOAD_VARIABLE, raising=False)
    faults.die_if_deadly(json.dumps({"name": "minilm"}))
    monkeypatch.setenv(faults.LOAD_VARIABLE, "minilm")
    for other in ({"name": "minilm2"}, {}):
        faults.die_if_deadly(json.dumps(other))
    assert kills == []
    faults.die_if_deadly(json.dumps({"name": "minilm"}))
    assert kills == [(os.getpid(), signal.SIGKILL)]
