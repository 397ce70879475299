"""What a gateway publishes of each tenant's requests, what waits, and what is refused at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import pytest
from google.rpc import code_pb2, error_details_pb2

from shoal.scheduler.v1 import scheduler_pb2
from shoal.work.v1 import work_pb2
from shoal_common import limits
from shoal_common.errors import CallError
from shoal_common.tokens import Identity
from shoal_gateway.lane_states import KnownLane, LaneStates
from shoal_gateway.pacing import UNMEASURED_TOKENS, Pacing, Turns
from shoal_gateway.reassembly import Answer
from shoal_gateway.results import Waiting
from shoal_gateway.units import Run

LANE = "lane"
CLASS = work_pb2.WORK_CLASS_INTERACTIVE
ACME, BRAVO = (Identity(name, frozenset(["infer"])) for name in ("acme", "bravo"))
WINDOW_MS = 100.0


class Lanes:
    """Lane states as the scheduler said them last."""

    def __init__(self) -> None:
        self.watchers = 1
        self.lanes: dict[str, KnownLane] = {}

    def get(self, token: str) -> KnownLane | None:
        return self.lanes.get(token)


class Gateway:
    """Pacing with requests that come and are answered as the test says."""

    def __init__(self) -> None:
        self.states = Lanes()
        self.pacing = Pacing(cast(LaneStates, self.states))

    @classmethod
    def known(cls, **state: Any) -> Gateway:
        """With a window of 100 ms, unless it is said otherwise."""
        made = cls()
        made.say(**state)
        return made

    def say(self, watchers: int = 1, **fields: Any) -> None:
        """What the scheduler says of the lane."""
        values: dict[str, Any] = {"window_ms": WINDOW_MS, "ms_per_token": 1.0, "drain_ms_per_second": 1000.0, **fields}
        self.states.watchers = watchers
        self.states.lanes[LANE] = KnownLane(scheduler_pb2.LaneState(lane=LANE, **values), 0.0)
        self.pacing.lanes_changed([LANE])

    def request(self, identity: Identity, *tokens: int, left_s: float = 30.0) -> tuple[Waiting, Turns | None]:
        """A request of a unit for each number of tokens; raises CallError."""
        runs = {f"u.{n}": Run(n, [b"item"], count) for n, count in enumerate(tokens)}
        waiting = Waiting("r", LANE, "m", Answer(len(tokens), {}, runs))
        return waiting, self.pacing.pace(LANE, "m", CLASS, runs.values(), identity, left_s).enter(waiting)

    def ready(self, identity: Identity, *tokens: int, left_s: float = 30.0) -> int:
        """How many units of a request may be published at once."""
        turns = self.request(identity, *tokens, left_s=left_s)[1]
        assert turns is not None
        return turns.ready

    def refusal(self, identity: Identity, *tokens: int, left_s: float = 30.0) -> CallError:
        with pytest.raises(CallError) as refused:
            self.request(identity, *tokens, left_s=left_s)
        return refused.value


def retry_s(error: CallError) -> float:
    retry = next(detail for detail in error.details if isinstance(detail, error_details_pb2.RetryInfo))
    return retry.retry_delay.ToMilliseconds() / 1000


def answer(waiting: Waiting, index: int) -> None:
    waiting.take(work_pb2.UnitResult(unit_id=f"u.{index}", last=True, results=[b"result"]))


async def test_nothing_is_held_back_where_nothing_is_known() -> None:
    gateway = Gateway()
    assert gateway.request(ACME, 10**6)[1] is None


@pytest.mark.parametrize("unknown", ["window_ms", "ms_per_token"])
async def test_a_lane_that_was_not_measured_is_filled_a_little(unknown: str) -> None:
    gateway = Gateway.known(**{unknown: 0})
    assert [gateway.ready(ACME, UNMEASURED_TOKENS - 1) for _ in range(3)] == [1, 1, 0]
    for _ in range(10):
        assert gateway.ready(ACME, UNMEASURED_TOKENS) == 0
    assert "10,000 ms" in gateway.refusal(ACME, 1).message
    gateway.say(window_ms=10 * UNMEASURED_TOKENS, drain_ms_per_second=0)
    assert gateway.ready(ACME, 1) == 0, "those who waited go first"
    gateway.say(window_ms=1000 * UNMEASURED_TOKENS, drain_ms_per_second=0)
    assert gateway.ready(ACME, 1) == 1


async def test_a_window_of_predicted_cost_is_published() -> None:
    gateway = Gateway.known(ms_per_token=0.5)
    assert [gateway.ready(ACME, 100) for _ in range(3)] == [1, 1, 0]


async def test_a_unit_without_tokens_costs_something() -> None:
    gateway = Gateway.known(ms_per_token=60.0)
    assert [gateway.ready(ACME, 0) for _ in range(3)] == [1, 1, 0]


async def test_gateways_share_a_window() -> None:
    gateway = Gateway.known(watchers=4, queued_ms=1000)
    assert [gateway.ready(ACME, 20) for _ in range(3)] == [1, 1, 0]
    gateway.say(watchers=1)
    assert [gateway.ready(ACME, 20) for _ in range(3)] == [1, 1, 0]


async def test_what_the_other_gateways_leave_is_this_ones() -> None:
    gateway = Gateway.known(watchers=4, queued_ms=40)
    assert [gateway.ready(ACME, 20) for _ in range(4)] == [1, 1, 1, 0]
    gateway.say(watchers=4, queued_ms=100)
    assert [gateway.ready(ACME, 20) for _ in range(1)] == [0], "60 of them are ours"
    gateway.say(watchers=4, queued_ms=500)
    assert gateway.pacing._rates[LANE].window_tokens == 25, "no less than its part"


async def test_classes_have_windows_of_their_own() -> None:
    gateway = Gateway.known()
    assert gateway.ready(ACME, 200) == 1 and gateway.ready(ACME, 1) == 0
    runs = [Run(0, [b"item"], 200)]
    pace = gateway.pacing.pace(LANE, "m", work_pb2.WORK_CLASS_BULK, runs, ACME, 30.0)
    turns = pace.enter(Waiting("r", LANE, "m", Answer(1, {}, {"u.0": runs[0]})))
    assert turns is not None and turns.ready == 1


async def test_units_go_in_order_as_results_come() -> None:
    gateway = Gateway.known()
    waiting, turns = gateway.request(ACME, 60, 60, 60, 60)
    assert turns is not None and turns.ready == 2
    answer(waiting, 1)
    assert turns.ready == 3
    answer(waiting, 1)
    assert turns.ready == 3, "a second answer makes no room"
    await turns.after(2)
    coming = asyncio.create_task(turns.after(3))
    await asyncio.sleep(0)
    assert not coming.done()
    answer(waiting, 0)
    await asyncio.wait_for(coming, 5)
    assert turns.ready == 4


async def test_a_request_that_fails_waits_for_no_turn() -> None:
    gateway = Gateway.known()
    waiting, turns = gateway.request(ACME, 200, 10)
    assert turns is not None and turns.ready == 1
    coming = asyncio.create_task(turns.after(1))
    await asyncio.sleep(0)
    waiting.fail(CallError(code_pb2.UNAVAILABLE, "TEST", "over"))
    await asyncio.wait_for(coming, 5)


async def test_a_tenant_has_so_much_waiting_and_no_more() -> None:
    gateway = Gateway.known()
    gateway.request(ACME, 120)
    for _ in range(5):
        gateway.request(ACME, 2_000)
    refused = gateway.refusal(ACME, 1)
    assert (refused.code, refused.reason) == (code_pb2.RESOURCE_EXHAUSTED, "TENANT_OVER_SHARE")
    assert "acme has 10,000 ms" in refused.message and "allows 10,000 ms" in refused.message
    (quota,) = (detail for detail in refused.details if isinstance(detail, error_details_pb2.QuotaFailure))
    assert [violation.subject for violation in quota.violations] == ["tenant:acme"]
    assert retry_s(refused) == pytest.approx(limits.QUEUE_WAIT_S / 2, abs=0.01)
    assert gateway.ready(BRAVO, 50) == 1, "another feels nothing of it"


async def test_what_may_wait_is_the_share_of_a_tenant() -> None:
    gateway = Gateway.known()
    gateway.request(BRAVO, 200)
    gateway.request(ACME, 200)
    gateway.request(ACME, 5_000)
    refused = gateway.refusal(ACME, 1)
    assert "allows 5,000 ms" in refused.message


async def test_a_request_must_fit_its_own_deadline_behind_its_tenants_others() -> None:
    gateway = Gateway.known()
    gateway.request(ACME, 200)
    gateway.request(ACME, 2_500)
    refused = gateway.refusal(ACME, 500, left_s=1.1)
    assert retry_s(refused) == pytest.approx(1.5), "2.5 s of work, 1 s left after what is published"
    assert gateway.ready(ACME, 500, left_s=3.0) == 0


async def test_a_large_request_alone_is_not_refused() -> None:
    gateway = Gateway.known()
    assert gateway.ready(ACME, *[60] * 1000) == 2


async def test_a_drain_that_is_not_known_refuses_nobody() -> None:
    gateway = Gateway.known(drain_ms_per_second=0.0)
    for _ in range(3):
        gateway.request(ACME, 10**6)


async def test_without_a_ready_worker_what_was_known_holds() -> None:
    gateway = Gateway.known()
    gateway.say(window_ms=0.0, drain_ms_per_second=0.0)
    assert [gateway.ready(ACME, 100) for _ in range(2)] == [1, 0]


async def test_a_lane_that_nobody_speaks_of_any_more_lets_everything_go() -> None:
    gateway = Gateway.known()
    gateway.request(ACME, 200)
    _, turns = gateway.request(ACME, 200)
    assert turns is not None and turns.ready == 0
    gateway.states.lanes.clear()
    gateway.pacing.lanes_changed([LANE])
    await asyncio.wait_for(turns.after(0), 5)
    assert turns.ready == 1
    assert gateway.request(ACME, 200)[1] is None


class Broker:
    """Stores what is published, and has it answered one unit after another."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.stored: deque[tuple[Waiting, int]] = deque()

    async def publish(self, waiting: Waiting, indices: Iterable[int]) -> None:
        for index in indices:
            self.stored.append((waiting, index))
            for _ in range(self._rng.randrange(3)):
                await asyncio.sleep(0)

    def answer_one(self) -> None:
        if self.stored:
            waiting, index = self.stored.popleft()
            if not waiting.done.done():
                answer(waiting, index)


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_left_behind_wherever_requests_are_cancelled(seed: int) -> None:
    rng = random.Random(seed)
    gateway, broker = Gateway.known(), Broker(rng)
    tenants = [Identity(name, frozenset(["infer"]), weight=rng.choice([0.5, 1.0, 3.0])) for name in "abc"]

    async def one() -> None:
        tokens = [rng.randint(1, 90) for _ in range(rng.randint(1, 5))]
        with contextlib.suppress(CallError):
            waiting, turns = gateway.request(rng.choice(tenants), *tokens)
            assert turns is not None
            published = 0
            try:
                while published < len(tokens):
                    await turns.after(published)
                    ready = turns.ready
                    await broker.publish(waiting, range(published, ready))
                    published = ready
                await waiting.done
            finally:
                turns.leave()

    tasks = []
    for _ in range(300):
        tasks.append(asyncio.create_task(one()))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            broker.answer_one()
    for task in rng.sample(tasks, 100):
        task.cancel()
    while not all(task.done() for task in tasks):
        broker.answer_one()
        await asyncio.sleep(0)
    for task in tasks:
        if not task.cancelled():
            task.result()
    (share,) = gateway.pacing._shares.values()
    assert share.is_empty and share.total == 0
