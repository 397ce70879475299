"""Refusals that are the gateway's own, whatever was asked."""

from __future__ import annotations

from shoal_common import errors

STOPPING_RETRY_S = 0.1
FULL_RETRY_S = 0.5


def stopping() -> errors.CallError:
    """UNAVAILABLE, for streams that would outlive this process."""
    return errors.unavailable("this gateway is shutting down; open the stream again", STOPPING_RETRY_S, "STOPPING")


def full() -> errors.CallError:
    """RESOURCE_EXHAUSTED, for a request that would not fit into this gateway's memory."""
    return errors.overloaded(
        "this gateway holds as many bytes of requests as it may; try again later, or send over Infer, which waits",
        FULL_RETRY_S,
        "GATEWAY_FULL",
    )
