"""One running mesh for all tests of this folder: every process, real weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from shoal_supervisor.embedded import EmbeddedMesh
from tests.support.raw import RawClient

PROFILES = Path(__file__).parents[2] / "profiles"


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMesh]:
    """`shoal up` with the default model and its bf16 twin."""
    with EmbeddedMesh(
        tmp_path_factory.mktemp("mesh"), models=["minilm", str(PROFILES / "minilm-bf16.yaml")]
    ) as running:
        running.wait_for_model("minilm")
        running.wait_for_model("minilm-bf16")
        yield running


@pytest.fixture
def raw(mesh: EmbeddedMesh) -> Iterator[RawClient]:
    """Calls with bytes as they are, past the SDK's own checks."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(mesh.address, options=options) as channel:
        yield RawClient(channel)
