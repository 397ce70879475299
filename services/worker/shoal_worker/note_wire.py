"""Notes of drains on the wire: told to, and heard from, the workers that serve the same lane."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shoal_common import lanes
from shoal_common.nats_session import Session
from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.outbox import Outbox

MICROSECONDS = 1e6


class NoteWire:
    """Core messages that nobody waits for: one that is lost makes a guess worse, and no more."""

    def __init__(
        self, session: Session, outbox: Outbox, heard: Callable[[DrainNote], None], group: asyncio.TaskGroup
    ) -> None:
        self._session = session
        self._outbox = outbox
        self._heard = heard
        self._group = group
        self._me = secrets.token_hex(6).encode()
        self._wanted: set[str] = set()
        self._subscriptions: dict[str, Subscription] = {}

    def follow(self, tokens: Iterable[str]) -> None:
        """Names the lanes of which notes are heard."""
        self._wanted = set(tokens)
        for token in self._wanted ^ self._subscriptions.keys():
            self._group.create_task(self._settle(token))

    def tell(self, note: DrainNote) -> None:
        """Tells of a drain."""
        waited = (int(note.oldest_s * MICROSECONDS), int(note.newest_s * MICROSECONDS))
        payload = b"%s %d %d %d %d" % (self._me, note.taken, note.left, *waited)
        self._outbox.put(lanes.drained_subject(note.lane, note.work_class), payload)

    async def _settle(self, token: str) -> None:
        if token in self._wanted and token not in self._subscriptions:
            self._subscriptions[token] = await self._session.subscribe(lanes.drained_subject(token, "*"), self._on_note)
        elif token not in self._wanted and token in self._subscriptions:
            with contextlib.suppress(nats.errors.Error):
                await self._subscriptions.pop(token).unsubscribe()

    async def _on_note(self, msg: Msg) -> None:
        sender, *counts = msg.data.split(b" ")
        if sender == self._me or len(counts) != 4 or not all(count.isdigit() for count in counts):
            return
        *_, token, work_class = msg.subject.split(".")
        taken, left, oldest, newest = (int(count) for count in counts)
        self._heard(DrainNote(token, work_class, taken, left, oldest / MICROSECONDS, newest / MICROSECONDS))
