"""Messages to the broker, put by code that must not wait and sent in order by one task."""

from __future__ import annotations

import asyncio

from shoal_common.nats_session import Session


class Outbox:
    """Sends without acknowledgement; while the connection is down, what is put is dropped.

    That is right for pulls and acks: a broker that was restarted knows neither of the old ones.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messages: list[tuple[str, bytes, str]] = []
        self._filled = asyncio.Event()

    def put(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Sends a message soon."""
        self._messages.append((subject, payload, reply))
        self._filled.set()

    async def run(self) -> None:
        """Sends for ever."""
        while True:
            await self._filled.wait()
            await self.flush()

    async def flush(self) -> None:
        """Sends what is there."""
        self._filled.clear()
        messages, self._messages = self._messages, []
        for subject, payload, reply in messages:
            await self._session.send(subject, payload, reply=reply)
