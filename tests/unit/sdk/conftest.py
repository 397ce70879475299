"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.sdk.fake_mesh import FakeMesh, running


@pytest.fixture
def fake() -> Iterator[FakeMesh]:
    """A mesh that answers what fake_mesh.py says."""
    with running() as mesh:
        yield mesh
