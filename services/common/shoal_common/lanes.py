"""Lanes: names of streams, subjects and consumers, and the one place that says how they are made."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from shoal.work.v1 import work_pb2
from shoal_common import limits

CLASSES: dict[work_pb2.WorkClass, str] = {
    work_pb2.WORK_CLASS_INTERACTIVE: "interactive",
    work_pb2.WORK_CLASS_BULK: "bulk",
}
WORK_CLASSES = {name: value for value, name in CLASSES.items()}
DEAD_LETTER_STREAM = "SHOAL_DEAD"
DEAD_LETTER_SUBJECT = "shoal.dead"
CANCEL_SUBJECT = "shoal.cancel"
DRAINED_SUBJECT = "shoal.drained"
RESULT_SUBJECT = "shoal.result"


@dataclass(frozen=True)
class Lane:
    """A queue of one model revision in one pool; it lies in one stream and has two classes."""

    pool: str
    profile_digest: str

    @cached_property
    def token(self) -> str:
        """16 characters for subjects and consumer names."""
        digest = hashlib.sha256(f"{self.pool}/{self.profile_digest}".encode()).digest()
        return base64.b32encode(digest)[:16].decode().lower()

    @property
    def shard(self) -> int:
        """The stream that it lies in."""
        return shard_of(self.token)


@lru_cache(maxsize=4096)
def shard_of(token: str) -> int:
    """The shard that a lane's token hashes to."""
    return int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "big") % limits.SHARDS


def stream_name(shard: int) -> str:
    """The work stream of a shard."""
    return f"SHOAL_WORK_{shard:02d}"


def work_subject(token: str, work_class: str) -> str:
    """Where units of a lane and class are published."""
    return f"shoal.work.{shard_of(token)}.{token}.{work_class}"


def consumer_name(token: str, work_class: str) -> str:
    """The lane's one pull consumer of a class."""
    return f"{token}_{work_class}"


def dead_letter_subject(token: str, reason: str) -> str:
    """Where dead letters of a lane and reason are kept; `*` stands for any."""
    return f"{DEAD_LETTER_SUBJECT}.{token}.{reason}"


def drained_subject(token: str, work_class: str) -> str:
    """Where workers tell each other that they drained a lane; the class may be a wildcard."""
    return f"{DRAINED_SUBJECT}.{token}.{work_class}"


def cancel_subject(shard: int) -> str:
    """Where gateways tell which units of a shard nobody waits for."""
    return f"{CANCEL_SUBJECT}.{shard}"


def stream_config(shard: int, replicas: int = 1) -> StreamConfig:
    """A shard's work stream: on file, a message is gone once acked, a full lane or shard refuses."""
    return StreamConfig(
        name=stream_name(shard),
        subjects=[f"shoal.work.{shard}.*.{work_class}" for work_class in CLASSES.values()],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=limits.LANE_UNITS,
        max_bytes=limits.SHARD_BYTES,
        max_msg_size=limits.NATS_PAYLOAD_BYTES,
        duplicate_window=120,
        num_replicas=replicas,
    )


def dead_letter_config(replicas: int = 1) -> StreamConfig:
    """Units that could not be served, kept for a week."""
    return StreamConfig(
        name=DEAD_LETTER_STREAM,
        subjects=[f"{DEAD_LETTER_SUBJECT}.>"],
        storage=StorageType.FILE,
        max_age=7 * 24 * 3600,
        max_bytes=limits.DEAD_LETTER_BYTES,
        allow_direct=True,
        num_replicas=replicas,
    )


def consumer_config(token: str, work_class: str) -> ConsumerConfig:
    """The lane's pull consumer. It is gone after a broker restart; whoever meets that makes it anew."""
    return ConsumerConfig(
        name=consumer_name(token, work_class),
        durable_name=consumer_name(token, work_class),
        filter_subject=work_subject(token, work_class),
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=limits.ACK_WAIT_S,
        max_deliver=-1,
        max_ack_pending=limits.MAX_ACK_PENDING,
        max_waiting=limits.MAX_WAITING_PULLS,
        mem_storage=True,
    )


def consumer_configs(token: str) -> Iterator[ConsumerConfig]:
    """The configs of a lane's consumers, one a class."""
    for work_class in CLASSES.values():
        yield consumer_config(token, work_class)
