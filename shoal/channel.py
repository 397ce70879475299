"""Makes the gRPC channel to a mesh."""

from __future__ import annotations

import re

import grpc

DEFAULT_TARGET = "127.0.0.1:50051"

MIB = 1024 * 1024
MESSAGE_BYTES = 65 * MIB
"""A mesh takes 64 MiB; what is a little above must reach it to be named."""

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # After a restart of the mesh the next connection is tried within half a second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # More often than each five minutes, and gRPC servers at their defaults take it for abuse.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


def check_target(target: str) -> str:
    """The target itself: "host:port" or "unix:/path". Raises ValueError for anything else."""
    if not isinstance(target, str):
        raise TypeError(f"target is {target!r}; it is a str")
    if re.fullmatch(r"unix:/.+|(?!unix:)(\[[^\[\]/]+\]|[^\s:/\[\]]+):\d{1,5}", target) is None:
        raise ValueError(f'target is {target!r}; it is "host:port" or "unix:/path"')
    return target


def open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel that connects on its first call; plain text without credentials. Needs a running loop."""
    options = list(_OPTIONS)
    if target.startswith("unix:"):
        options.append(("grpc.default_authority", "localhost"))  # a path is no authority, some servers refuse it
    if credentials is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, credentials, options)
