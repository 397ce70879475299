"""Raw JetStream pulls: requests to the broker, and what comes back for them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable
from typing import Protocol

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shoal_common import lanes, logs, queue_setup, telemetry
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_worker.decisions.drain_notes import DrainNote
from shoal_worker.decisions.pull_plan import Kind, Order
from shoal_worker.delivery import Pulled, parse
from shoal_worker.note_wire import NoteWire
from shoal_worker.outbox import Outbox

log = logs.get("pulls")
NANOSECONDS = 1_000_000_000
PEEK_REQUEST = b'{"batch":1,"no_wait":true,"max_bytes":1}'
"""No message is so small: it takes nothing. The server says whether one was there."""
SOMETHING = "Message Size Exceeds MaxBytes"
CROWDED = "408"
"""To a peek: several came at once, and this one was not looked at."""
INBOXES = {Kind.WAIT: "wait", Kind.DRAIN: "drain", Kind.PEEK: "peek"}
EMPTY = ("404", "408")
"""No messages; expired. Everything else (503, 409) says that the consumer is not to be had."""
NO_CONSUMER = ("503", "409")


class Listener(Protocol):
    """Who hears what pulls bring."""

    def pulled(self, messages: list[Pulled], *, waited: bool) -> None:
        """Messages that came together, on waiting pulls or on drains."""
        ...

    def pull_ended(self, pull_id: int, *, empty: bool) -> str | None:
        """A pull ended by a status. Returns its lane, if it is known."""
        ...

    def pull_peeked(self, pull_id: int, *, found: bool) -> None:
        """A peek found that work waits, or could not tell."""
        ...

    def sibling_drained(self, note: DrainNote) -> None:
        """A sibling drained a lane."""
        ...

    def lane_is_back(self, lane: str) -> None:
        """A lane's consumers were made."""
        ...


class Pulls:
    """Sends pulls. Data carries the stream's subject and only statuses the inbox, so that each kind of
    pull has a subscription of its own."""

    def __init__(self, session: Session, outbox: Outbox, listener: Listener, group: asyncio.TaskGroup) -> None:
        self._session = session
        self._outbox = outbox
        self._listener = listener
        self._group = group
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._arrived: dict[bool, list[Pulled]] = {True: [], False: []}
        self._notes = NoteWire(session, outbox, listener.sibling_drained, group)
        self._making: set[str] = set()
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Subscribes to the answers."""
        self._subscriptions = [
            await self._session.subscribe(f"{self._inbox}.wait.*", self._on_waited),
            await self._session.subscribe(f"{self._inbox}.drain.*", self._on_drained),
            await self._session.subscribe(f"{self._inbox}.peek.*", self._on_peeked),
        ]

    async def stop(self) -> None:
        """Leaves the inbox: the broker then gives pulls that still wait nothing more."""
        for subscription in self._subscriptions:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    def follow(self, tokens: Iterable[str]) -> None:
        """Names the lanes of whose drains by siblings the listener hears."""
        self._notes.follow(tokens)

    def tell(self, note: DrainNote) -> None:
        """Tells siblings of a drain."""
        self._notes.tell(note)

    def send(self, order: Order) -> None:
        """Sends a pull."""
        stream = lanes.stream_name(lanes.shard_of(order.lane))
        consumer = lanes.consumer_name(order.lane, order.work_class)
        self._outbox.put(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            _request(order),
            f"{self._inbox}.{INBOXES[order.kind]}.{order.pull_id}",
        )

    async def _on_waited(self, msg: Msg) -> None:
        self._on_message(msg, True)

    async def _on_drained(self, msg: Msg) -> None:
        self._on_message(msg, False)

    async def _on_peeked(self, msg: Msg) -> None:
        headers = msg.headers or {}
        pull_id = int(msg.subject.rsplit(".", 1)[1])
        status, found = headers.get("Status", ""), headers.get("Description") == SOMETHING
        if found or status == CROWDED:
            self._listener.pull_peeked(pull_id, found=found)
        else:
            self._on_status(pull_id, status)

    def _on_message(self, msg: Msg, waited: bool) -> None:
        if msg.subject.startswith(self._inbox):
            self._on_status(int(msg.subject.rsplit(".", 1)[1]), (msg.headers or {}).get("Status", ""))
            return
        _, _, _, lane, work_class = msg.subject.split(".")
        arrived = self._arrived[waited]
        if not arrived:
            # Those that lie in the subscription's buffer come before this runs.
            asyncio.get_running_loop().call_soon(self._hand_over, waited)
        traceparent = msg.headers.get(telemetry.TRACEPARENT) if msg.headers else None
        arrived.append(Pulled(lane, work_class, msg.data, parse(msg.reply), traceparent))

    def _hand_over(self, waited: bool) -> None:
        messages, self._arrived[waited] = self._arrived[waited], []
        if messages:
            self._listener.pulled(messages, waited=waited)

    def _on_status(self, pull_id: int, status: str) -> None:
        self._hand_over(waited=False)  # The end of a drain comes after its messages.
        lane = self._listener.pull_ended(pull_id, empty=status in EMPTY)
        if lane is not None and status in NO_CONSUMER and lane not in self._making:
            self._making.add(lane)
            self._group.create_task(self._make_consumers(lane))

    async def _make_consumers(self, lane: str) -> None:
        try:
            await queue_setup.ensure_consumers(self._session, lane)
        except (ApiError, BrokerTimeout) as error:
            log.warning("a lane's consumers cannot be made", lane=lane, error=str(error))
            return
        finally:
            self._making.discard(lane)
        self._listener.lane_is_back(lane)


def _request(order: Order) -> bytes:
    match order.kind:
        case Kind.WAIT:
            return b'{"batch":1,"expires":%d}' % int(order.expires_s * NANOSECONDS)
        case Kind.DRAIN:
            return b'{"batch":%d,"no_wait":true}' % order.batch
        case Kind.PEEK:
            return PEEK_REQUEST
