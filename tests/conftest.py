"""Fixtures that tests of every tier share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats import NatsServer


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A running broker of the test's own; the test may kill and restart it."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()
