"""The worker's settings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shoal_worker.settings import WorkerSettings


def settings(**values) -> WorkerSettings:
    return WorkerSettings(**{"listen": "unix:/tmp/w.sock", "sidecar": "unix:/tmp/s.sock", **values})


def test_auto_fits_the_device() -> None:
    cpu = settings()
    assert cpu.streams_or_auto >= 1
    assert cpu.memory_or_auto > 0
    for device in ("cuda:0", "sim:12"):
        assert settings(device=device).streams_or_auto == 1
        assert settings(device=device).memory_or_auto == 0
    assert settings(streams=3, threads=5, memory_bytes=7).memory_or_auto == 7


def test_models_are_a_list() -> None:
    assert settings(models=" a, b ,,").held_models == ["a", "b"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sidecar": "localhost:1"},
        {"device": "tpu"},
        {"device": "sim"},
        {"worker": "a b"},
        {"streams": -1},
        {"worker": ""},
    ],
)
def test_wrong_values_are_named(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        settings(**wrong)
