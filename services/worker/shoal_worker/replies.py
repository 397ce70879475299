"""Results packed into messages: all of one caller together, each below the limit of a result message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shoal.work.v1 import work_pb2
from shoal_worker.decisions.unit import HeldUnit

PART_BYTES = 64
"""A result's tags and lengths, at most."""


@dataclass(slots=True)
class Reply:
    """A ResultBatch for one caller and the units whose results, or parts of them, it carries."""

    subject: str
    batch: work_pb2.ResultBatch = field(default_factory=work_pb2.ResultBatch)
    units: list[HeldUnit] = field(default_factory=list)
    size: int = 0


def pack(results: Iterable[tuple[HeldUnit, work_pb2.UnitResult]], limit_bytes: int) -> list[Reply]:
    """Groups results by caller. No message goes over the limit, if no item's result does."""
    replies: list[Reply] = []
    open_replies: dict[str, Reply] = {}
    for unit, result in results:
        for part in _parts(result, limit_bytes):
            size = part.ByteSize() + PART_BYTES
            reply = open_replies.get(unit.reply_subject)
            if reply is None or reply.size + size > limit_bytes:
                reply = open_replies[unit.reply_subject] = Reply(unit.reply_subject)
                replies.append(reply)
            reply.batch.results.append(part)
            reply.units.append(unit)
            reply.size += size
    return replies


def _parts(result: work_pb2.UnitResult, limit_bytes: int) -> Iterator[work_pb2.UnitResult]:
    """A result whole, or cut between items: parts are numbered from 0, the first names the blobs, the last ends."""
    if result.ByteSize() + PART_BYTES <= limit_bytes:
        yield result
        return
    items = list(result.results)
    del result.results[:]
    room = limit_bytes - result.ByteSize() - PART_BYTES
    runs = list(_runs(items, room))
    offset = 0
    for sequence, run in enumerate(runs):
        part = work_pb2.UnitResult()
        part.CopyFrom(result)
        if sequence:
            del part.blobs[:]
        part.sequence, part.offset, part.last = sequence, offset, sequence == len(runs) - 1
        part.results.extend(run)
        offset += len(run)
        yield part


def _runs(items: list[bytes], room: int) -> Iterator[list[bytes]]:
    run: list[bytes] = []
    size = 0
    for item in items:
        if run and size + len(item) + PART_BYTES > room:
            yield run
            run, size = [], 0
        run.append(item)
        size += len(item) + PART_BYTES
    yield run
