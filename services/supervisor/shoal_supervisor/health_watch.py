"""Whether a process serves, told by a stream from it: an idle mesh is not polled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from nats.aio.client import Client

RETRY_S = 0.05
ANSWER_S = 3.0
CHANNEL_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    # A process that is there and answers nothing, not even pings, does not serve.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]


async def watch_grpc(address: str, serving: Callable[[bool], None]) -> None:
    """Tells each change of a gRPC server's health, until cancelled; waits for the server to come."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    serving(answer.status == health_pb2.HealthCheckResponse.SERVING)
            except grpc.aio.AioRpcError:
                pass
            # A process that ended is told of by its exit, and this is cancelled meanwhile.
            await asyncio.sleep(RETRY_S)
            serving(False)


async def watch_nats(url: str, token: str, serving: Callable[[bool], None]) -> None:
    """Tells when JetStream answers and when the connection to it ends, until cancelled."""
    while True:
        ended = asyncio.Event()
        client = Client()
        # nats-py raises whatever a half-open connection made of its parser; all of it means: not yet.
        with contextlib.suppress(Exception):
            try:
                await _connect(client, url, token, ended)
                await client.request("$JS.API.INFO", timeout=ANSWER_S)
                serving(True)
                await ended.wait()
            finally:
                await client.close()
        await asyncio.sleep(RETRY_S)
        serving(False)


async def _connect(client: Client, url: str, token: str, ended: asyncio.Event) -> None:
    async def on_end() -> None:
        ended.set()

    async def on_error(_: Exception) -> None:
        pass

    await client.connect(
        url,
        name="supervisor",
        token=token,
        allow_reconnect=False,
        connect_timeout=1,
        # Else the first refused connection costs two seconds.
        reconnect_time_wait=RETRY_S,  # pyright: ignore[reportArgumentType] - fractions work
        disconnected_cb=on_end,
        closed_cb=on_end,
        error_cb=on_error,
    )
