"""A gRPC server as every service runs it: health, reflection, message limits and typed errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from shoal_common import call_ends, limits, request_ids

UNIX_PATH_BYTES = 107

SERVER_OPTIONS = [
    ("grpc.max_receive_message_length", limits.GRPC_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # From 1,000 calls on that wait for a process which stands still, gRPC would cancel some, without a word.
    ("grpc.server.max_pending_requests", limits.PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", limits.PENDING_CALLS),
]
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", limits.GRPC_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # tonic resets streams whose authority is a Unix path.
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A peer that was stopped, not ended, is noticed too.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


class Server:
    """A running gRPC server with a health service whose answer the service sets."""

    def __init__(self, server: grpc.aio.Server, names: Sequence[str]) -> None:
        self.grpc = server
        self._names = ("", *names)
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    async def set_serving(self, serving: bool) -> None:
        """Tells Check and Watch whether calls can be answered."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)


@contextlib.asynccontextmanager
async def serving(
    address: str,
    names: Sequence[str],
    add: Callable[[grpc.aio.Server], None],
    *,
    drain_s: float = 5.0,
) -> AsyncIterator[Server]:
    """Serves until the block ends: then NOT_SERVING, calls in flight get `drain_s`, the rest are cancelled.

    Raises:
        OSError: the address is taken or cannot be used.
    """
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[TypedErrors()])
    wrapped = Server(server, names)
    add(server)
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        if len(str(path).encode()) > UNIX_PATH_BYTES:
            raise OSError(f"the socket's path {path} is longer than {UNIX_PATH_BYTES} bytes")
        path.unlink(missing_ok=True)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
    if not bound:
        raise OSError(f"cannot listen on {address}: it is in use")
    await wrapped.set_serving(False)
    await server.start()
    try:
        yield wrapped
    finally:
        await wrapped.set_serving(False)
        await server.stop(drain_s)


def channel(address: str) -> grpc.aio.Channel:
    """A channel to another service of the mesh; it reconnects within a second."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class TypedErrors(grpc.aio.ServerInterceptor):
    """Turns a handler's CallError into its status, and anything else into INTERNAL with an id for the logs."""

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(("/grpc.", "/shoal.v1.InferenceService/")):
            return handler  # Inference answers its errors itself: on Infer they belong to one request.
        if handler.response_streaming:
            return _with_stream(handler, handler_call_details.method)
        return _with_unary(handler, handler_call_details.method)


def _with_unary(handler: Any, method: str) -> Any:
    inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await inner(request, context)
        except Exception as error:
            await _end(context, error, method)

    make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    return make(call, handler.request_deserializer, handler.response_serializer)


def _with_stream(handler: Any, method: str) -> Any:
    inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            async for response in inner(request, context):
                yield response
        except Exception as error:
            await _end(context, error, method)

    make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
    return make(call, handler.request_deserializer, handler.response_serializer)


async def _end(context: grpc.aio.ServicerContext, error: Exception, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    request_id = request_ids.of_call(context)
    await call_ends.abort(context, call_ends.typed(error, request_id, method=method), request_id)
