"""When a request is sent again."""

from __future__ import annotations

import asyncio

import grpc
import pytest

import shoal
from shoal.deadline import REQUEST_MAX_S, Deadline
from shoal.errors import CallError, InvalidRequest, Overloaded, Unavailable
from shoal.retry import LONGEST_WAIT_S, retrying, wait_s
from tests.unit.sdk.fake_mesh import BREAK, FakeMesh, busy, status


def unavailable(retry_after_s: float | None = None) -> Unavailable:
    error = Unavailable("away", code="UNAVAILABLE")
    error.retry_after_s = retry_after_s
    return error


def test_the_meshs_own_time_goes_first() -> None:
    overloaded = Overloaded("busy")
    assert wait_s(overloaded, 1) is None
    overloaded.retry_after_s = 3.0
    assert wait_s(overloaded, 9) == 3.0
    assert wait_s(unavailable(0.0), 1) == 0.0


def test_unavailable_backs_off_with_jitter() -> None:
    assert [wait_s(unavailable(), n, draw=lambda: 0.0) for n in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert wait_s(unavailable(), 1, draw=lambda: 0.5) == pytest.approx(0.075)
    assert wait_s(unavailable(), 10_000, draw=lambda: 0.0) == LONGEST_WAIT_S


def test_nothing_else_is_tried_again() -> None:
    assert wait_s(InvalidRequest("bad"), 1) is None
    assert wait_s(CallError("unknown"), 1) is None


def test_a_deadline_counts_down() -> None:
    now = 100.0
    deadline = Deadline(10, clock=lambda: now)
    assert deadline.left_s() == 10
    now = 109.0
    assert deadline.left_s() == 1
    assert deadline.allows(0.9)
    assert not deadline.allows(1)
    now = 110.0
    with pytest.raises(shoal.DeadlineExceeded, match="10 s"):
        deadline.left_s()
    assert Deadline(None).left_s() == REQUEST_MAX_S


async def test_a_deadline_that_cuts_off_a_retry_tells_of_the_try_before() -> None:
    now = 0.0
    deadline = Deadline(10, clock=lambda: now)

    async def attempt(left_s: float) -> None:
        nonlocal now
        now += 6
        if now > 10:
            raise deadline.exceeded()
        raise unavailable(0.0)

    with pytest.raises(shoal.DeadlineExceeded, match=r"no answer within 10 s .*; the try before it: away") as e:
        await retrying(attempt, deadline)
    assert isinstance(e.value.__cause__, Unavailable)


async def test_retry_info_is_honoured(fake: FakeMesh) -> None:
    fake.faults.extend([busy(500), busy(20)])
    async with shoal.aio.connect(fake.target) as mesh:
        assert (await mesh.encode("7", timeout=2))[0] == 7
    first, second, third = (heard.at_s for heard in fake.heard)
    assert second - first >= 0.5
    assert third - second >= 0.02
    assert fake.heard[2].limit_s < fake.heard[0].limit_s - 0.4  # one deadline for all of them


async def test_unavailable_is_tried_again(fake: FakeMesh) -> None:
    fake.faults.extend([BREAK, None])
    async with shoal.aio.connect(fake.target) as mesh:
        assert (await mesh.encode("7"))[0] == 7
    assert len(fake.heard) == 2


async def test_retries_end_with_the_deadline(fake: FakeMesh) -> None:
    fake.faults.extend([busy(50)] * 1000)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.Overloaded, match="busy"):
            await mesh.encode("7", timeout=0.3)
    assert loop.time() - begin < 0.4
    assert 2 <= len(fake.heard) <= 6


async def test_resource_exhausted_without_a_time_is_final(fake: FakeMesh) -> None:
    fake.faults.append(status(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request has 65 MiB, the limit is 64 MiB"))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.Overloaded, match="64 MiB") as e:
            await mesh.encode("7")
    assert e.value.retry_after_s is None
    assert len(fake.heard) == 1


async def test_a_mesh_that_has_answered_is_waited_for(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        await mesh.encode("7")
        await asyncio.to_thread(fake.stop)
        work = asyncio.create_task(mesh.encode("8", timeout=20))
        with pytest.raises((shoal.Unavailable, shoal.DeadlineExceeded)):  # whichever comes first
            await mesh.encode("8", timeout=0.1)
        assert not work.done()
        await asyncio.to_thread(fake.restart)
        assert (await work)[0] == 8
