"""Wires a runtime: the engine, its gRPC service on a Unix socket, health and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shoal.runtime.v1 import runtime_pb2, runtime_pb2_grpc
from shoal_common import limits
from shoal_torch_runtime.engine import Engine
from shoal_torch_runtime.session import Session

NAME = runtime_pb2.DESCRIPTOR.services_by_name["RuntimeService"].full_name
_OPTIONS = [
    ("grpc.max_receive_message_length", limits.GRPC_MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.GRPC_MESSAGE_BYTES),
]


class RuntimeService(runtime_pb2_grpc.RuntimeServiceServicer):
    """Serves one stream. `ended` is set once it is over, and the runtime with it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._taken = False
        self.ended = asyncio.Event()

    async def Run(
        self,
        request_iterator: AsyncIterator[runtime_pb2.RunRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """The sidecar's stream; a second one is refused."""
        if self._taken:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a runtime serves one stream, and has one")
        self._taken = True
        try:
            await context.send_initial_metadata(())
            await Session(self._engine).run(request_iterator, context.write)
        finally:
            self.ended.set()


async def serve(socket: str, device: str, streams: int, threads: int) -> None:
    """Serves on a Unix socket until the sidecar's stream ends.

    Raises:
        RuntimeError: the socket cannot be bound.
    """
    service = RuntimeService(Engine(device, streams, threads))
    server = grpc.aio.server(options=_OPTIONS)
    runtime_pb2_grpc.add_RuntimeServiceServicer_to_server(service, server)
    healths = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]  # set where grpc.aio is
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    for name in ("", NAME):
        await healths.set(name, health_pb2.HealthCheckResponse.SERVING)
    await service.ended.wait()
    await server.stop(grace=None)
