"""Buckets and leases as the registry relies on them, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from shoal_common.bucket import Bucket, Conflict
from shoal_common.lease import TTL_S, Lease
from shoal_common.nats_session import BrokerTimeout
from tests.support.broker import session_with
from tests.support.nats import NatsServer
from tests.support.until import until


async def test_a_deleted_key_can_be_made_again_and_only_once(nats_server: NatsServer):
    async with session_with(nats_server) as session:
        bucket = Bucket(session, "test")
        await bucket.ensure()
        first = await bucket.put("key", b"1", expected=0)
        gone = await bucket.delete("key", expected=first)
        snapshot = await bucket.read()
        assert (snapshot.entries, snapshot.deleted, snapshot.revision) == ({}, {"key": gone}, gone)
        again = await bucket.put("key", b"2", expected=0)
        entry = await bucket.get("key")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"2", again)
        for expected in (0, first, gone):
            with pytest.raises(Conflict):
                await bucket.put("key", b"3", expected=expected)


async def test_a_read_without_a_broker_ends_by_its_deadline(nats_server: NatsServer):
    async with session_with(nats_server) as session:
        bucket = Bucket(session, "test")
        await bucket.ensure()
        nats_server.kill()
        with pytest.raises(BrokerTimeout):
            await bucket.read(timeout_s=0.3)


async def test_a_lease_given_up_is_taken_at_once_and_again(nats_server: NatsServer):
    async with session_with(nats_server) as session:
        for holder in ("a", "b", "a"):
            lease = Lease(session, "test", holder)
            async with asyncio.timeout(TTL_S / 2), lease.kept():
                await lease.wait_held()
                assert lease.held


async def test_a_lease_is_lost_and_said_to_be_when_another_writes_it(nats_server: NatsServer):
    async with session_with(nats_server) as session:
        lease = Lease(session, "test", "a")
        async with lease.kept():
            await lease.wait_held()
            bucket = Bucket(session, "shoal-leases", ttl_s=TTL_S)

            async def stolen() -> bool:
                entry = await bucket.get("test")
                with contextlib.suppress(Conflict):
                    await bucket.put("test", b"thief", expected=entry.revision if entry else 0)
                    return True
                return False

            await until(stolen, 5, "the lease could not be stolen")
            async with asyncio.timeout(TTL_S):
                await lease.wait_lost()
            assert not lease.held
            async with asyncio.timeout(2 * TTL_S):
                await lease.wait_held()  # The thief does not renew.


async def test_a_lease_outlives_a_broker_restart(nats_server: NatsServer):
    async with session_with(nats_server) as session:
        lease = Lease(session, "test", "a")
        async with lease.kept():
            await lease.wait_held()
            nats_server.restart()
            await session.wait_up(5)
            async with asyncio.timeout(2 * TTL_S):
                await lease.wait_held()
            assert lease.held
