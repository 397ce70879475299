"""Units for tests of the worker's decisions."""

from __future__ import annotations

import itertools

from shoal_worker.decisions.unit import INTERACTIVE, HeldUnit

_ids = itertools.count()
DIGEST = "d" * 64


def unit(*, deadline_s: float = 1e6, work_class: str = INTERACTIVE, digest: str = DIGEST, **fields) -> HeldUnit:
    """A unit of one text of 20 tokens."""
    number = next(_ids)
    values = {
        "id": f"unit-{number}",
        "request_id": "request",
        "reply_subject": "shoal.result.a",
        "lane": "lane",
        "pulled_s": 0.0,
        "published_s": 0.0,
        "ack_subject": f"ack-{number}",
        "deliveries": 1,
        "payload": b"",
        "items": 1,
        "tokens": 20,
        "squared_tokens": 400,
        **fields,
    }
    return HeldUnit(work_class=work_class, profile_digest=digest, deadline_s=deadline_s, **values)
