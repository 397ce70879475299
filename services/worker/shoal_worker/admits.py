"""Admit messages to the sidecar: units packed so that each message stays far below what it decodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import limits
from shoal_worker.decisions.unit import HeldUnit

ADMIT_BYTES = 8 * limits.MIB
"""A message is closed before it grows beyond this; only a unit that is larger alone goes over it."""
ENTRY_BYTES = 96
"""A unit's tags, lengths, count of deliveries and traceparent, at most."""

assert ADMIT_BYTES + limits.NATS_PAYLOAD_BYTES <= limits.GRPC_MESSAGE_BYTES, "the sidecar decodes every Admit"


Arrived = tuple[HeldUnit, Sequence[sidecar_pb2.FetchedItem]]
"""A unit and what came of its blobs."""


def pack(units: Iterable[Arrived]) -> Iterator[sidecar_pb2.AttachRequest]:
    """Units in their order, in as few messages as the limit allows."""
    request, size = sidecar_pb2.AttachRequest(), 0
    for unit, fetched in units:
        unit_bytes = len(unit.payload) + len(unit.ack_subject) + ENTRY_BYTES + sum(item.ByteSize() for item in fetched)
        if size and size + unit_bytes > ADMIT_BYTES:
            yield request
            request, size = sidecar_pb2.AttachRequest(), 0
        request.admit.units.add(
            unit=unit.payload,
            ack_subject=unit.ack_subject,
            deliveries=unit.deliveries,
            traceparent=unit.traceparent or "",
            fetched=fetched,
        )
        size += unit_bytes
    if size:
        yield request
