"""Fetching: a few units at once, each once, and none that is gone; and what the decisions make of such units."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from shoal.sidecar.v1 import sidecar_pb2
from shoal_common import limits
from shoal_common.blobs import Blob, Blobs
from shoal_common.broker_clock import BrokerClock
from shoal_common.profile import Cost, Tuned
from shoal_worker.decisions import pace
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.fetching import Fetched, Fetching
from tests.support.until import until
from tests.unit.worker.units import DIGEST, unit


class Store(Blobs):
    """Holds every blob, and gives each when the test says so."""

    def __init__(self) -> None:
        super().__init__("memory:///")
        self.gate = asyncio.Event()
        self.asked: list[str] = []

    async def get(self, blob: Blob) -> memoryview:
        self.asked.append(blob.key)
        await self.gate.wait()
        return memoryview(blob.key.encode())


class Admissions:
    """What a worker hears of its fetches."""

    def __init__(self) -> None:
        self.admitted: list[tuple[HeldUnit, Fetched]] = []
        self.late: list[HeldUnit] = []
        self.expired: list[HeldUnit] = []

    async def admit(self, one: HeldUnit, fetched: Fetched) -> None:
        self.admitted.append((one, fetched))


def held(number: int, **fields) -> HeldUnit:
    blob = Blob(0, f"key-{number}", 1, bytes(32))
    return unit(**({"blobs": (blob,), "stage": Stage.FETCHING, "published_s": time.time()} | fields))


async def test_a_few_at_once_and_each_once() -> None:
    store, heard = Store(), Admissions()
    async with asyncio.TaskGroup() as group:
        fetching = Fetching(store, BrokerClock(), group, heard.admit, heard.late.append, heard.expired.append)
        units = [held(number) for number in range(3 * limits.FETCHES)]
        assert all(fetching.start(one) for one in units)
        assert not any(fetching.start(one) for one in units), "it is under way"
        await until(lambda: len(store.asked) >= limits.FETCHES)
        assert len(store.asked) == limits.FETCHES
        units[-1].stage = Stage.GONE
        store.gate.set()
    assert [one for one, _ in heard.admitted] == units[:-1], "in the order in which they came"
    assert heard.admitted[0][1] == [sidecar_pb2.FetchedItem(index=0, item=b"key-0")]
    assert store.asked == [f"key-{number}" for number in range(3 * limits.FETCHES - 1)]
    assert not heard.late and not heard.expired


async def test_a_unit_that_was_fetched_can_be_fetched_again() -> None:
    store, heard = Store(), Admissions()
    store.gate.set()
    async with asyncio.TaskGroup() as group:
        fetching = Fetching(store, BrokerClock(), group, heard.admit, heard.late.append, heard.expired.append)
        one = held(0)
        assert fetching.start(one)
        await until(lambda: fetching.start(one))
    assert len(heard.admitted) == 2


async def test_one_that_waited_too_long_for_its_turn_expires() -> None:
    store, heard = Store(), Admissions()
    store.gate.set()
    async with asyncio.TaskGroup() as group:
        fetching = Fetching(store, BrokerClock(), group, heard.admit, heard.late.append, heard.expired.append)
        fetching.start(one := held(0, deadline_s=time.monotonic() - 1))
    assert heard.expired == [one] and not store.asked


async def test_files_that_are_here_need_no_fetching(tmp_path: Path) -> None:
    heard = Admissions()
    async with asyncio.TaskGroup() as group:
        fetching = Fetching(
            Blobs(str(tmp_path)), BrokerClock(), group, heard.admit, heard.late.append, heard.expired.append
        )
        one = held(0)
        assert fetching.here(one) is None
        (tmp_path / "key-0").write_bytes(b"1")
        assert fetching.here(one) == [sidecar_pb2.FetchedItem(index=0, path=str(tmp_path / "key-0"))]
        assert fetching.here(unit()) == [], "it has no blobs"
        assert fetching.start(one)
        assert fetching.here(one) is None, "it is under way"
        (tmp_path / "key-1").write_bytes(b"12")
        assert fetching.here(held(1)) is None, "who fetches it says what is wrong with it"


def dispatch() -> Dispatch:
    made = Dispatch(1, pace.CPU, random.Random(1), 0.0)
    made.serve({DIGEST: Tuned(cost=Cost(batch_ms=3.0, token_us=100.0))}, {"lane": DIGEST})
    return made


def test_what_is_fetched_does_not_run_and_leaves_the_device_to_others() -> None:
    made = dispatch()
    made.fetching(one := held(0))
    steps = made.advance(0.0)
    assert not steps.batches and steps.pulls, "others are pulled meanwhile"
    made.counted(one, 1, 50, 2500)
    assert (one.stage, one.cost_ms) == (Stage.READY, pytest.approx(5.0))
    [(_, batch)] = made.advance(1.0).batches
    assert batch.units == [one]


@pytest.mark.parametrize(("count", "tokens"), [(limits.FETCHES, 1), (2, int(pace.CPU.interactive_ms * 5))])
def test_no_more_is_pulled_while_enough_is_fetched(count: int, tokens: int) -> None:
    made = dispatch()
    units = [held(number, tokens=tokens) for number in range(count)]
    for one in units[:-1]:
        made.fetching(one)
    assert made.advance(0.0).pulls
    made = dispatch()
    for one in units:
        made.fetching(one)
    assert not made.advance(0.0).pulls
    made.leave(units[0], Stage.PARKED)
    assert made.advance(0.1).pulls, "one that is late does not count"
