"""One connection to the broker, with the promises that nats-py leaves open kept here.

- It never gives up: connects, and reconnects after 50 ms, for as long as the process lives; a client
  that closed for good ends the process.
- A publish is acknowledged or raises by its deadline; unacknowledged ones are sent again under the
  same Nats-Msg-Id after a reconnect.
- Nothing is published into a dead connection's buffer, where it would be replayed stale or dropped.

It keeps the broker's clock known: nothing else that a worker calls tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from shoal_common import lanes, limits, logs
from shoal_common.broker_clock import BrokerClock
from shoal_common.process import Stop

log = logs.get("nats")
RESEND_S = 1.0
NO_STREAM_WAIT_S = 0.05
API_TIMEOUT_S = 3.0
CLOCK_PERIOD_S = 30.0
CLOCK_RETRY_S = 0.1
"""Until the registry has made the streams: only their replies tell the broker's time."""


class BrokerSettings(Protocol):
    """The settings that a session needs."""

    @property
    def nats_url(self) -> str: ...
    @property
    def nats_token(self) -> str: ...


class BrokerTimeout(Exception):
    """The broker did not answer by the deadline."""


class ApiError(Exception):
    """JetStream refused a request."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream: {description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class _Resend(Exception):
    """The connection was lost: what was not acknowledged must be sent again."""


class Session:
    """A connection; made by `connected_session`."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.clock = BrokerClock()
        self._up = asyncio.Event()
        self._renewed = asyncio.Event()
        """Set at the next reconnect, and replaced then."""
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._tokens = itertools.count()
        self._replies: dict[str, asyncio.Future[Msg | None]] = {}
        self._reconnect_hooks: list[Callable[[], None]] = []

    def on_reconnect(self, hook: Callable[[], None]) -> None:
        """Calls `hook` after each reconnect: everything in flight may have been lost."""
        self._reconnect_hooks.append(hook)

    @property
    def is_up(self) -> bool:
        """Whether the connection stands now."""
        return self.nc.is_connected

    async def wait_up(self, timeout_s: float) -> None:
        """Returns when the connection stands.

        Raises:
            BrokerTimeout: it does not within the time.
        """
        if self.nc.is_connected:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.nc.is_connected:
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError:
            raise BrokerTimeout("not connected to the broker") from None

    async def send(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> bool:
        """Publishes without an acknowledgement; False, and nothing sent, while the connection is down."""
        if not self.nc.is_connected:
            return False
        with contextlib.suppress(nats.errors.Error):
            await self.nc.publish(subject, payload, reply=reply, headers=dict(headers) if headers else None)
            return True
        return False

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Calls back for each message; the subscription is renewed by itself after a reconnect."""
        return await self.nc.subscribe(subject, cb=callback, pending_msgs_limit=-1, pending_bytes_limit=-1)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        msg_id: str,
        timeout_s: float,
        headers: dict[str, str] | None = None,
    ) -> int:
        """Publishes to JetStream and returns the message's sequence once the broker has stored it.

        Raises:
            ApiError: the stream refused it (for instance a full lane).
            BrokerTimeout: no acknowledgement in time; it may still have been stored.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BrokerTimeout(f"no acknowledgement for {subject}")
            await self.wait_up(left)
            reply = await self._request(
                subject, payload, min(RESEND_S, left), {**(headers or {}), "Nats-Msg-Id": msg_id}
            )
            if reply is None:
                continue
            if _is_no_responders(reply):
                await asyncio.sleep(NO_STREAM_WAIT_S)
                continue
            return int(_checked(json.loads(reply.data))["seq"])

    async def confirmed(
        self, subject: str, payload: bytes, waits_s: Sequence[float], timeout_s: float = limits.DEADLINE_DEFAULT_S
    ) -> bool:
        """Sends until somebody answers, once before each wait; whether somebody did.

        Silence says something of the other side only while the connection stands: the waits begin anew
        after each reconnect. False before the timeout means that nobody answered through all of them.
        """
        with contextlib.suppress(TimeoutError, BrokerTimeout):
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.wait_up(timeout_s)
                    renewed = self._renewed
                    for wait_s in waits_s:
                        if await self._answered(subject, payload, wait_s, renewed):
                            return True
                        if renewed.is_set() or not self.nc.is_connected:
                            break
                    else:
                        return False
        return False

    async def _answered(self, subject: str, payload: bytes, wait_s: float, renewed: asyncio.Event) -> bool:
        """Sends once; whether somebody answered within the wait, which a reconnect ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                reply = await self._request(subject, payload, wait_s, None)
                if reply is not None and not _is_no_responders(reply):
                    return True
                # A gateway that reconnects looks like one that is gone: give it the whole wait.
                await renewed.wait()
        return False

    async def api(
        self, operation: str, request: dict[str, Any] | None = None, timeout_s: float = API_TIMEOUT_S
    ) -> dict[str, Any]:
        """Calls JetStream's API ($JS.API.<operation>).

        Raises:
            ApiError: it was refused.
            BrokerTimeout: no answer in time.
        """
        deadline = time.monotonic() + timeout_s
        payload = json.dumps(request).encode() if request is not None else b""
        while (left := deadline - time.monotonic()) > 0:
            await self.wait_up(left)
            sent_s = time.monotonic()
            reply = await self._request(f"$JS.API.{operation}", payload, left, None)
            if reply is None:
                continue
            if _is_no_responders(reply):
                await asyncio.sleep(NO_STREAM_WAIT_S)
                continue
            body = _checked(json.loads(reply.data))
            if ts := body.get("ts"):
                self.clock.observe(sent_s, time.monotonic(), ts)
            return body
        raise BrokerTimeout(f"no answer from JetStream to {operation}")

    async def _request(
        self, subject: str, payload: bytes, timeout_s: float, headers: dict[str, str] | None
    ) -> Msg | None:
        """One request and its first reply; None when none came or the connection was lost."""
        token = str(next(self._tokens))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg | None] = loop.create_future()
        self._replies[token] = future
        late = loop.call_later(timeout_s, _give_up, future)  # asyncio.timeout costs ten times as much.
        try:
            await self.nc.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            return await future
        except _Resend:
            return None
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
            await asyncio.sleep(min(NO_STREAM_WAIT_S, timeout_s))
            return None
        finally:
            late.cancel()
            self._replies.pop(token, None)

    async def _start(self) -> None:
        await self.subscribe(f"{self._inbox}.*", self._on_reply)

    async def _follow_clock(self) -> None:
        """Asks for the broker's time now and then, and after each reconnect: it may be another broker's."""
        while True:
            renewed, wait_s = self._renewed, CLOCK_PERIOD_S
            try:
                await self.api(f"STREAM.INFO.{lanes.stream_name(0)}")
            except (ApiError, BrokerTimeout):
                wait_s = CLOCK_RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await renewed.wait()

    async def _on_reply(self, msg: Msg) -> None:
        future = self._replies.get(msg.subject.rsplit(".", 1)[-1])
        if future is not None and not future.done():
            future.set_result(msg)

    def _on_up(self) -> None:
        self._up.set()
        self._renewed.set()
        self._renewed = asyncio.Event()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(_Resend())
        for hook in self._reconnect_hooks:
            hook()


@contextlib.asynccontextmanager
async def connected_session(settings: BrokerSettings, name: str, stop: Stop) -> AsyncIterator[Session]:
    """A session that stands when the block begins; it waits for the broker as long as that takes."""
    nc = Client()
    session = Session(nc)
    closing = False

    async def on_reconnected() -> None:
        log.info("broker is back")
        session._on_up()

    async def on_disconnected() -> None:
        if not closing:
            log.warning("broker is away")

    async def on_closed() -> None:
        if not closing:
            stop.now("the broker's connection closed for good")

    async def on_error(error: Exception) -> None:
        # nats-py reports its connection's faults and what our own callbacks raise in the same way.
        if isinstance(error, (nats.errors.Error, OSError)):
            log.debug("broker connection", error=repr(error))
        else:
            log.error("a message's handler failed", exc_info=error)

    await _reachable(settings.nats_url)
    await nc.connect(
        settings.nats_url,
        name=name,
        token=settings.nats_token or None,
        max_reconnect_attempts=-1,
        reconnect_time_wait=limits.RECONNECT_WAIT_S,  # pyright: ignore[reportArgumentType] - fractions work
        ping_interval=limits.PING_INTERVAL_S,
        pending_size=limits.MESSAGE_BYTES * 2,
        flusher_queue_size=65_536,
        reconnected_cb=on_reconnected,
        disconnected_cb=on_disconnected,
        closed_cb=on_closed,
        error_cb=on_error,
    )
    await session._start()
    following = asyncio.create_task(session._follow_clock(), name=f"broker-clock-{name}")
    try:
        yield session
    finally:
        following.cancel()
        closing = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2.0):
                await nc.flush(1)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1.0):
                await nc.close()


async def _reachable(url: str) -> None:
    """Returns when something listens at the broker's address: nats-py's endless first connect may not."""
    address = urlsplit(url)
    while True:
        try:
            _, writer = await asyncio.open_connection(address.hostname, address.port or 4222)
        except OSError:
            await asyncio.sleep(limits.RECONNECT_WAIT_S)
            continue
        writer.close()
        return


def _give_up(reply: asyncio.Future[Msg | None]) -> None:
    if not reply.done():
        reply.set_result(None)


def _is_no_responders(msg: Msg) -> bool:
    return bool(msg.headers) and (msg.headers or {}).get("Status") == "503"


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    if error := body.get("error"):
        raise ApiError(error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
    return body
