"""A message as JetStream delivered it: what its ack subject tells."""

from __future__ import annotations

from typing import NamedTuple


class Delivery(NamedTuple):
    """One delivery of one message."""

    ack_subject: str
    consumer: str
    """The pull consumer that delivered it: a lane's, of a class."""
    deliveries: int
    """How often it was delivered, this time included."""
    sequence: int
    """In its stream."""
    published_s: float
    """When the broker stored it: seconds since 1970 on the broker's clock."""
    pending: int
    """Messages that waited behind it: a hint, older by the time that siblings pulled."""

    @property
    def lane(self) -> str:
        """The token of the lane that it was delivered from."""
        return self.consumer.rpartition("_")[0]


class Pulled(NamedTuple):
    """A message of a lane."""

    lane: str
    """The lane's token."""
    work_class: str
    data: bytes
    delivery: Delivery
    traceparent: str | None
    """Set when the request is sampled."""


def parse(ack_subject: str) -> Delivery:
    """Reads `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<seq>.<cseq>.<ns>.<pending>[.<token>]`.

    Raises:
        ValueError: it is no ack subject.
    """
    tokens = ack_subject.split(".")
    first = 4 if len(tokens) == 9 else 6
    if len(tokens) < first + 5 or tokens[1] != "ACK":
        raise ValueError(f"{ack_subject!r} is no ack subject")
    delivered, sequence, _, published_ns, pending = tokens[first : first + 5]
    return Delivery(
        ack_subject, tokens[first - 1], int(delivered), int(sequence), int(published_ns) / 1e9, int(pending)
    )
