"""A server that falls behind for a moment answers late; it ends no call that it has not looked at."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import grpc

from shoal_common import grpc_server

CALLS = 4_000
"""More than gRPC would keep by itself."""
METHOD = "/test.Echo/Echo"


async def echo(raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return raw


def add(server: grpc.aio.Server) -> None:
    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))


async def test_calls_that_wait_for_a_process_that_stands_still_are_answered(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/echo.sock"
    sent = threading.Event()

    def call() -> Counter[str]:
        with grpc.insecure_channel(address, options=grpc_server.CHANNEL_OPTIONS) as channel:
            echo_call = channel.unary_unary(METHOD)
            echo_call(b"", timeout=30, wait_for_ready=True)
            calls = [echo_call.future(b"x", timeout=60) for _ in range(CALLS)]
            sent.set()
            return Counter(each.code().name for each in calls)  # pyright: ignore[reportAttributeAccessIssue]

    async with grpc_server.serving(address, ["test.Echo"], add, drain_s=0):
        calling = asyncio.create_task(asyncio.to_thread(call))
        await asyncio.sleep(0)
        while not sent.is_set():
            # What a stopped process does, or one whose machine is busy: it looks at nothing.
            time.sleep(0.5)
            await asyncio.sleep(0.001)
        time.sleep(0.5)
        assert await calling == {"OK": CALLS}
