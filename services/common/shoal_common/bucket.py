"""A JetStream key-value bucket: one consistent read of everything, writes conditional on revisions."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from shoal_common import stream_page
from shoal_common.nats_session import ApiError, BrokerTimeout, Session

PAGE_KEYS = 512
PAGE_WAIT_S = 5.0
WRONG_LAST_SEQUENCE = (10071, 10164)


class Conflict(Exception):
    """Somebody else wrote the key meanwhile."""


@dataclass(frozen=True)
class Entry:
    """A value and the bucket's revision that wrote it."""

    value: bytes
    revision: int


@dataclass(frozen=True)
class Snapshot:
    """The bucket at one revision."""

    entries: dict[str, Entry] = field(default_factory=dict)
    revision: int = 0
    deleted: dict[str, int] = field(default_factory=dict)
    """Keys whose last write was a delete, and its revision."""


class Bucket:
    """A bucket by name. Keys are subject tokens joined by dots."""

    def __init__(self, session: Session, name: str, *, ttl_s: float = 0, replicas: int = 1) -> None:
        self._session = session
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."
        self._ttl_s = ttl_s
        self._replicas = replicas

    async def ensure(self) -> None:
        """Makes the bucket if it is not there."""
        config = {
            "name": self._stream,
            "subjects": [f"{self._prefix}>"],
            "max_msgs_per_subject": 1,
            "max_age": int(self._ttl_s * 1e9),
            "storage": "file",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "duplicate_window": int(min(self._ttl_s or 120, 120) * 1e9),
            "num_replicas": self._replicas,
        }
        await self._session.api(f"STREAM.CREATE.{self._stream}", config)

    async def last_revision(self) -> int:
        """The newest revision."""
        info = await self._session.api(f"STREAM.INFO.{self._stream}")
        return int(info["state"]["last_seq"])

    async def get(self, key: str) -> Entry | None:
        """One entry, or None."""
        return (await self.read(key)).entries.get(key)

    async def read(self, keys: str = ">", timeout_s: float = 5.0) -> Snapshot:
        """All entries whose keys match, as they were at one revision.

        Raises:
            BrokerTimeout: no whole answer in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(keys)
        except TimeoutError:
            raise BrokerTimeout(f"no snapshot of {self._stream}") from None

    async def put(self, key: str, value: bytes, *, expected: int, timeout_s: float = 5.0) -> int:
        """Writes if the key's revision is `expected` (0: it must not exist); returns the new revision.

        Raises:
            Conflict: it is another.
            BrokerTimeout: no acknowledgement in time.
        """
        try:
            return await self._write(key, value, expected, {}, timeout_s)
        except Conflict:
            # A deleted key does not exist, yet its delete is what the broker compares with.
            deleted = (await self.read(key, timeout_s)).deleted.get(key) if expected == 0 else None
            if deleted is None:
                raise
            return await self._write(key, value, deleted, {}, timeout_s)

    async def delete(self, key: str, *, expected: int, timeout_s: float = 5.0) -> int:
        """Deletes if the key's revision is `expected`; raises as `put`."""
        return await self._write(key, b"", expected, {"KV-Operation": "DEL"}, timeout_s)

    async def _write(self, key: str, value: bytes, expected: int, headers: dict[str, str], timeout_s: float) -> int:
        try:
            return await self._session.publish(
                self._prefix + key,
                value,
                msg_id=secrets.token_hex(12),
                timeout_s=timeout_s,
                headers={"Nats-Expected-Last-Subject-Sequence": str(expected), **headers},
            )
        except ApiError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                raise Conflict(f"{key} is not at revision {expected}") from None
            raise

    async def _read(self, keys: str) -> Snapshot:
        """Scans the stream: it keeps one message a key, and one rewritten meanwhile is met again later."""
        entries: dict[str, Entry] = {}
        deleted: dict[str, int] = {}
        revision = await self.last_revision()
        start = 1
        while True:
            page = await stream_page.read(
                self._session, self._stream, self._prefix + keys, start, PAGE_KEYS, timeout_s=PAGE_WAIT_S
            )
            for msg in page.messages:
                headers = msg.headers or {}
                key = headers["Nats-Subject"].removeprefix(self._prefix)
                start = int(headers["Nats-Sequence"]) + 1
                if "KV-Operation" in headers or "Nats-Marker-Reason" in headers:
                    entries.pop(key, None)
                    deleted[key] = start - 1
                else:
                    deleted.pop(key, None)
                    entries[key] = Entry(msg.data, start - 1)
            if not page.remaining:
                return Snapshot(entries, max(revision, start - 1), deleted)
