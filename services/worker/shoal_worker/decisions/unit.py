"""A unit in a worker's hands, from pull to ack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal_common.blobs import Blob

INTERACTIVE = "interactive"
BULK = "bulk"


class Stage(Enum):
    """Where a unit stands; each is left for a later one, or for an earlier when a model goes away."""

    PARKED = "its model is not ready here; the payload is kept, unless the sidecar has tokenized it before"
    FETCHING = "its blobs are on their way here, or the sidecar reads them; the payload is kept"
    ADMITTING = "the sidecar has it and tokenizes; the payload is kept"
    READY = "it waits for a batch"
    RUNNING = "it is in a batch"
    ANSWERED = "its result is sent and not yet confirmed"
    RETURNING = "it was asked back from the sidecar, to go to the queue"
    GONE = "it is nobody's here"


@dataclass(slots=True, eq=False)
class HeldUnit:
    """What the worker knows of a unit. Times are seconds on the loop's monotonic clock."""

    id: str
    request_id: str
    reply_subject: str
    lane: str
    """The token of the lane it came by."""
    work_class: str
    profile_digest: str
    deadline_s: float
    pulled_s: float
    published_s: float
    """When the broker stored it: seconds since 1970 on the broker's clock."""
    ack_subject: str
    deliveries: int
    payload: bytes
    """The Unit message; empty once the sidecar has it tokenized."""
    items: int
    tokens: int
    """The gateway's guess until the sidecar has counted."""
    squared_tokens: int
    is_counted: bool = False
    """Whether items and tokens are exact."""
    traceparent: str | None = None
    tenant: str = ""
    """Whose it is."""
    estimated_tokens: int = 0
    """The gateway's guess."""
    blobs: tuple[Blob, ...] = ()
    """Those of its items that lie in object storage; removed when it is done with."""
    put_backs: int = 0
    """How often it was put on the queue again."""
    offered_s: float | None = None
    """Since when it stands in an offer to siblings; None when it does not."""
    stage: Stage = Stage.PARKED
    cost_ms: float = 0.0
    """Predicted milliseconds that it adds to a batch."""
    answered_s: float = 0.0
    """When its result was first sent."""
    unconfirmed: int = 0
    """Result messages that the gateway has not confirmed."""
    orphaned: bool = False
    """One of them never was."""

    @property
    def runs_alone(self) -> bool:
        """Whether it may have brought a worker down: then it must not take others with it."""
        return self.deliveries > 1
