"""Reads a stream a page at a time, by one direct get; the stream's config allows these."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import NamedTuple

from nats.aio.msg import Msg

from shoal_common.nats_session import NO_STREAM_WAIT_S, ApiError, BrokerTimeout, Session


class Page(NamedTuple):
    """Messages by sequence; headers Nats-Sequence, Nats-Subject and Nats-Time-Stamp tell of each."""

    messages: list[Msg]
    remaining: int
    """Messages of the same subjects behind the last."""


async def read(
    session: Session,
    stream: str,
    subject: str,
    start: int,
    count: int,
    *,
    timeout_s: float,
    max_bytes: int = 0,
) -> Page:
    """At most `count` messages of a subject, which may have wildcards, from sequence `start` on.

    With `max_bytes` the page ends with the message that reaches it, so that it holds at least one.

    Raises:
        BrokerTimeout: no whole answer in time.
        ApiError: the broker refused.
    """
    request = {"next_by_subj": subject, "batch": count, "seq": start}
    if max_bytes:
        request["max_bytes"] = max_bytes
    messages: list[Msg] = []
    statuses: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def on_message(msg: Msg) -> None:
        headers = msg.headers or {}
        if "Status" in headers:
            statuses.put_nowait(headers)
        else:
            messages.append(msg)

    subscription = await session.subscribe(f"_INBOX.{secrets.token_hex(11)}", on_message)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                await session.wait_up(timeout_s)
                await session.send(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), subscription.subject)
                status = await statuses.get()
                if status["Status"] != "503":
                    break
                messages.clear()
                await asyncio.sleep(NO_STREAM_WAIT_S)
    except TimeoutError:
        raise BrokerTimeout(f"no page of {stream}") from None
    finally:
        await subscription.unsubscribe()
    if status["Status"] not in ("204", "404"):
        raise ApiError(int(status["Status"]), 0, status.get("Description", "direct get failed"))
    return Page(messages, int(status.get("Nats-Num-Pending", 0)))
