"""A broker session inside a test."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import NamedTuple

from shoal_common.nats_session import Session, connected_session
from shoal_common.process import Stop
from shoal_supervisor.embedded import EmbeddedMesh
from tests.support.nats import NatsServer


class _Settings(NamedTuple):
    nats_url: str
    nats_token: str


@contextlib.asynccontextmanager
async def session_with(server: NatsServer, name: str = "test") -> AsyncIterator[Session]:
    """A session with a test's broker."""
    async with connected_session(_Settings(server.url, server.token), name, Stop()) as session:
        yield session


@contextlib.asynccontextmanager
async def session_of(mesh: EmbeddedMesh, name: str = "test") -> AsyncIterator[Session]:
    """A session with the broker of a running mesh."""
    kept = json.loads((mesh.folder.broker / "access.json").read_text())
    settings = _Settings(f"nats://127.0.0.1:{kept['port']}", kept["token"])
    async with connected_session(settings, name, Stop()) as session:
        yield session
