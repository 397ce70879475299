"""The stream of dead letters: units that could not be served, kept with the reason, read and removed again."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg

from shoal.work.v1 import work_pb2
from shoal_common import lanes, limits, logs, stream_page
from shoal_common.counters import Counter
from shoal_common.nats_session import ApiError, BrokerTimeout, Session

log = logs.get("dead-letters")
KEEP_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 5.0
PAGE_BYTES = 8 * limits.MIB
"""Of one page, and one letter more."""
NO_MESSAGE = (10043, 10057)
"""A sequence between others, and one at the ends."""
ANY = "*"

_kept = Counter("shoal", "shoal.dead_letters", "{unit}", "Dead letters kept, by reason")


class Letter(NamedTuple):
    """A dead letter and what its place in the stream tells."""

    sequence: int
    kept_unix_ms: int
    """When it was kept, on the broker's clock."""
    content: work_pb2.DeadLetter

    @property
    def lane(self) -> str:
        """The token of the lane that the unit lay on."""
        return _token(self.content.subject, 3)

    @property
    def work_class(self) -> str:
        """The class that it lay in."""
        return _token(self.content.subject, 4)

    @property
    def is_whole(self) -> bool:
        """Whether all of the unit was kept."""
        return len(self.content.unit) == self.content.unit_bytes


class Letters(NamedTuple):
    """A page of letters, by sequence."""

    letters: list[Letter]
    remaining: int
    """Letters behind the page."""


async def keep(
    session: Session, *, subject: str, sequence: int, unit: bytes, reason: str, detail: str, deliveries: int
) -> bool:
    """Publishes a unit as a dead letter, once however often it is delivered; whether the broker has it.

    `subject` and `sequence` are the message's in its work stream, `reason` a stable upper-case name.
    """
    log.error("a unit is dead", subject=subject, sequence=sequence, reason=reason, detail=detail)
    letter = work_pb2.DeadLetter(
        unit=unit[: limits.DEAD_LETTER_UNIT_BYTES],
        subject=subject,
        reason=reason,
        detail=detail[: limits.ERROR_TEXT_BYTES],
        deliveries=deliveries,
        unit_bytes=len(unit),
    )
    lane = _token(subject, 3)
    try:
        await session.publish(
            lanes.dead_letter_subject(lane, reason),
            letter.SerializeToString(),
            msg_id=f"{lane}-{sequence}",
            timeout_s=KEEP_TIMEOUT_S,
        )
    except (ApiError, BrokerTimeout) as error:
        log.error("a dead letter could not be kept", subject=subject, sequence=sequence, error=str(error))
        return False
    _kept.add(1, reason=reason)
    return True


async def read(session: Session, *, start: int = 1, count: int = 1, reason: str = ANY) -> Letters:
    """At most `count` letters of a reason from sequence `start` on; fewer when they are large.

    Raises:
        ApiError, BrokerTimeout: the broker refused or did not answer.
    """
    page = await stream_page.read(
        session,
        lanes.DEAD_LETTER_STREAM,
        lanes.dead_letter_subject(ANY, reason),
        start,
        count,
        timeout_s=READ_TIMEOUT_S,
        max_bytes=PAGE_BYTES,
    )
    return Letters([_letter(message) for message in page.messages], page.remaining)


async def get(session: Session, sequence: int) -> Letter | None:
    """One letter, or None; raises as `read`."""
    found = (await read(session, start=sequence)).letters
    return found[0] if found and found[0].sequence == sequence else None


async def counts(session: Session) -> Mapping[str, int]:
    """How many letters there are, by reason.

    Raises:
        ApiError, BrokerTimeout: the broker refused or did not answer.
    """
    request = {"subjects_filter": lanes.dead_letter_subject(ANY, ANY)}
    info = await session.api(f"STREAM.INFO.{lanes.DEAD_LETTER_STREAM}", request)
    letters: collections.Counter[str] = collections.Counter()
    for subject, count in (info["state"].get("subjects") or {}).items():
        letters[_token(subject, 3)] += count
    return letters


async def last_sequence(session: Session) -> int:
    """The sequence of the newest letter that there ever was; raises as `counts`."""
    info = await session.api(f"STREAM.INFO.{lanes.DEAD_LETTER_STREAM}")
    return int(info["state"]["last_seq"])


async def delete(session: Session, sequence: int) -> bool:
    """Removes a letter; whether it was there.

    Raises:
        ApiError, BrokerTimeout: the broker refused or did not answer.
    """
    try:
        await session.api(f"STREAM.MSG.DELETE.{lanes.DEAD_LETTER_STREAM}", {"seq": sequence, "no_erase": True})
    except ApiError as error:
        if error.err_code not in NO_MESSAGE:
            raise
        return False
    return True


async def delete_all(session: Session, reason: str = ANY) -> int:
    """Removes all letters of a reason that are there now; how many those were. Raises as `delete`."""
    before = await last_sequence(session) + 1
    request = {"filter": lanes.dead_letter_subject(ANY, reason), "seq": before}
    purged = await session.api(f"STREAM.PURGE.{lanes.DEAD_LETTER_STREAM}", request)
    return int(purged["purged"])


def _letter(message: Msg) -> Letter:
    headers = message.headers or {}
    try:
        content = work_pb2.DeadLetter.FromString(message.data)
    except DecodeError:
        # Whoever may publish here may publish anything; it can be seen and dropped.
        content = work_pb2.DeadLetter(reason=_token(headers["Nats-Subject"], 3), detail="this is no dead letter")
    kept = datetime.fromisoformat(headers["Nats-Time-Stamp"])
    return Letter(int(headers["Nats-Sequence"]), int(kept.timestamp() * 1000), content)


def _token(subject: str, at: int) -> str:
    tokens = subject.split(".")
    return tokens[at] if len(tokens) > at else ""
