"""How long a request may take: pure arithmetic over what the caller asked for."""

from __future__ import annotations

from shoal_common import limits

STRETCH = 0.03
"""gRPC clients may send a deadline up to this share longer than they wait, to send the same header again."""
ANSWER_MARGIN_S = 0.02
"""Kept back of a call's own deadline, so that the typed answer reaches the caller before its call ends."""
ANSWER_MARGIN_SHARE = 0.1
"""The margin is never more than this share of what is left."""


def budget_s(call_left_s: float | None, asked_ms: int = 0) -> float:
    """Seconds in which the request must be answered; 0 or less when it is too late already.

    `call_left_s` is what is left of the gRPC call's (or stream's) deadline, None without one; `asked_ms`
    is a stream request's own deadline, 0 without one.
    """
    budget = asked_ms / 1000 if asked_ms else limits.DEADLINE_DEFAULT_S if call_left_s is None else call_left_s
    if call_left_s is not None:
        waited_s = call_left_s * (1 - STRETCH)
        budget = min(budget, waited_s - min(ANSWER_MARGIN_S, ANSWER_MARGIN_SHARE * waited_s))
    return min(budget, limits.DEADLINE_MAX_S)
