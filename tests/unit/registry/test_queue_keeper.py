"""When the keeper looks after the queue: not each period only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from shoal.registry.v1 import registry_pb2
from shoal_common.nats_session import BrokerTimeout
from shoal_registry import queue_keeper
from shoal_registry.queue_keeper import QueueKeeper
from shoal_registry.state import State
from tests.support.until import until

GRACE_S = 0.3


class Rounds(QueueKeeper):
    """Counts its rounds."""

    def __init__(self, state: State) -> None:
        super().__init__(None, state, 1, lambda: self.holds_lease)  # pyright: ignore[reportArgumentType]
        self.holds_lease = True
        self.at_s: list[float] = []
        self.error: Exception | None = None

    async def round(self, now_s: float) -> None:
        self.at_s.append(now_s)
        if self.error:
            raise self.error


def model(digest: str) -> registry_pb2.Model:
    return registry_pb2.Model(name="mine", lane=registry_pb2.Lane(token=digest))


@pytest.fixture
def state() -> State:
    state = State()
    state.put_model(model("old"), 1)
    return state


@contextlib.asynccontextmanager
async def running(keeper: Rounds, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """It has made its first round when the block begins; its period is longer than any test."""
    monkeypatch.setattr(queue_keeper, "CHECK_S", 0.01)
    monkeypatch.setattr(queue_keeper, "GRACE_S", GRACE_S)
    monkeypatch.setattr(queue_keeper, "PERIOD_S", 1_000.0)
    task = asyncio.create_task(keeper.run())
    await until(lambda: keeper.at_s)
    yield
    task.cancel()


async def test_a_replaced_revision_is_looked_after_at_once_and_after_its_grace(
    state: State, monkeypatch: pytest.MonkeyPatch
):
    keeper = Rounds(state)
    async with running(keeper, monkeypatch):
        state.put_model(model("new"), 2)
        await until(lambda: len(keeper.at_s) == 3, 5)
    assert keeper.at_s[2] - keeper.at_s[1] >= GRACE_S


async def test_a_deleted_model_too(state: State, monkeypatch: pytest.MonkeyPatch):
    keeper = Rounds(state)
    async with running(keeper, monkeypatch):
        state.remove_model("mine", 2)
        await until(lambda: len(keeper.at_s) == 3, 5)


async def test_a_round_that_failed_is_made_again_soon(state: State, monkeypatch: pytest.MonkeyPatch):
    keeper = Rounds(state)
    async with running(keeper, monkeypatch):
        keeper.error = BrokerTimeout("away")
        state.put_model(model("new"), 2)
        await until(lambda: len(keeper.at_s) >= 3, 5)


async def test_a_replica_without_the_lease_makes_none(state: State, monkeypatch: pytest.MonkeyPatch):
    keeper = Rounds(state)
    async with running(keeper, monkeypatch):
        keeper.holds_lease = False
        state.put_model(model("new"), 2)
        keeper.wake()
        await until(lambda: not keeper._wake.is_set())
        assert len(keeper.at_s) == 1
        keeper.holds_lease = True
        await until(lambda: len(keeper.at_s) == 2)
