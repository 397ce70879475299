"""A broker session inside a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from shoal_common.nats_session import Session, connected_session
from shoal_common.process import Stop
from tests.support.nats import NatsServer


class _Settings(NamedTuple):
    nats_url: str
    nats_token: str


@contextlib.asynccontextmanager
async def session_with(server: NatsServer, name: str = "test") -> AsyncIterator[Session]:
    """A session with a test's broker."""
    async with connected_session(_Settings(server.url, server.token), name, Stop()) as session:
        yield session
