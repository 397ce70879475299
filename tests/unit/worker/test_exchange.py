"""What is posted to siblings, and when nothing is: a stream that keeps what it is sent, decisions as the test says."""

from __future__ import annotations

import asyncio
from typing import cast

from shoal.sidecar.v1 import sidecar_pb2
from shoal_worker.attach import Attach
from shoal_worker.decisions import pace
from shoal_worker.decisions.dispatch import Dispatch
from shoal_worker.decisions.put_back import HOP_S, Standing, Surplus
from shoal_worker.decisions.unit import HeldUnit, Stage
from shoal_worker.exchange import POST_GAP_S, STATE_PERIOD_S, Exchange
from shoal_worker.held import Held
from tests.support.until import until
from tests.unit.worker.units import DIGEST, unit

LANES = frozenset({"lane"})


class Device:
    """Decisions, and the stream that posts go to."""

    def __init__(self) -> None:
        self.is_up = True
        self.sent: list[sidecar_pb2.AttachRequest] = []
        self.pace = pace.CPU
        self.stands = Standing(0.0, 60.0)
        self.over: list[Surplus] = []
        self.residents = [sidecar_pb2.Resident(profile_digest=DIGEST)]
        self.returned: list[list[HeldUnit]] = []
        self.held = Held()
        self.exchange = Exchange(
            cast(Attach, self), cast(Dispatch, self), self.held, lambda _: self.residents, self.returned.append
        )

    def send(self, request: sidecar_pb2.AttachRequest) -> None:
        self.sent.append(request)

    def standing(self, now_s: float) -> Standing:
        return self.stands

    def surplus(self, now_s: float) -> list[Surplus]:
        return self.over

    def post(self, now_s: float) -> list[str]:
        """Posts at a moment; the kinds of what was sent."""
        self.sent.clear()
        self.exchange.post(now_s)
        return [str(request.WhichOneof("message")) for request in self.sent]


def ready(starts_in_ms: float, **fields) -> Surplus:
    return Surplus(unit(stage=Stage.READY, **fields), 10.0, starts_in_ms)


def with_a_sibling() -> Device:
    device = Device()
    device.exchange.siblings(1)
    return device


async def test_alone_nothing_is_said() -> None:
    device = Device()
    device.over = [ready(100.0)]
    assert device.post(0.0) == []
    device.exchange.siblings(1)
    assert device.post(1.0) == ["state", "offer"]
    device.exchange.siblings(0)
    device.over = []
    assert device.post(2.0) == []


async def test_a_state_is_said_when_it_changed_and_once_in_a_while() -> None:
    device = with_a_sibling()
    device.stands = Standing(100.0, 60.0)
    assert device.post(0.0) == ["state"]
    device.stands = Standing(90.0, 60.0)
    assert device.post(0.01) == [], "time has passed as it was said"
    device.stands = Standing(60.0, 60.0)
    assert device.post(0.02) == ["state"], "free sooner than was said"
    device.stands = Standing(50.0, 60.0)
    assert device.post(0.03) == []
    device.stands = Standing(40.0, 30.0)
    assert device.post(0.04) == ["state"], "less room"
    device.stands = Standing(30.0, 0.0)
    assert device.post(0.05) == ["state"], "none left"
    device.exchange.granted(1)
    assert device.post(0.06) == ["state"]
    assert device.sent[0].state.grants_seen == 1
    device.stands = Standing(0.0, 0.0)
    assert device.post(0.06 + STATE_PERIOD_S) == ["state"], "a sign of life"


async def test_a_device_that_should_be_free_long_ago_repeats_nothing() -> None:
    device = with_a_sibling()
    device.stands = Standing(10.0, 0.0)
    assert device.post(0.0) == ["state"]
    device.stands = Standing(0.0, 0.0)
    assert device.post(0.1) == []


async def test_what_can_be_run_is_said_when_it_changed() -> None:
    device = with_a_sibling()
    device.post(0.0)
    device.residents = [sidecar_pb2.Resident(profile_digest=DIGEST, load_ms=500.0)]
    device.exchange.models_changed()
    assert device.post(0.01) == ["state"]
    assert device.sent[0].state.residents[0].load_ms == 500.0


async def test_an_offer_stands_until_it_changes() -> None:
    device = with_a_sibling()
    device.post(0.0)
    device.over = [ready(200.0), ready(100.0)]
    ids = [over.unit.id for over in device.over]
    assert device.post(0.01) == ["offer"]
    assert [one.unit_id for one in device.sent[0].offer.units] == ids
    assert [one.starts_in_ms for one in device.sent[0].offer.units] == [200.0, 100.0]
    device.over = [Surplus(over.unit, over.cost_ms, over.starts_in_ms - 10.0) for over in device.over]
    assert device.post(0.02) == [], "all as it was said"
    device.over[0].unit.stage = Stage.GONE
    device.over = [Surplus(device.over[1].unit, 10.0, 80.0)]
    assert device.post(0.03) == [], "what was granted leaves by itself"
    device.over = [*device.over, ready(300.0)]
    assert device.post(0.04) == ["offer"]
    assert len(device.sent[0].offer.units) == 2
    device.over = []
    assert device.post(0.05) == ["offer"], "they will run here now"
    assert not device.sent[0].offer.units
    assert device.post(0.06) == []


async def test_an_offer_is_renewed_when_the_device_is_late() -> None:
    device = with_a_sibling()
    device.post(0.0)
    device.over = [ready(100.0)]
    assert device.post(0.01) == ["offer"]
    assert device.post(0.05) == ["offer"], "it was to start in 60 ms by now"


async def test_a_burst_of_changes_is_one_post() -> None:
    device = with_a_sibling()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert device.post(began_s) == ["state"]
    for number in range(1, 20):
        device.stands = Standing(50.0 * number, 60.0)
        assert device.post(began_s + POST_GAP_S / 50 * number) == []
    await until(lambda: device.sent)
    assert loop.time() - began_s >= POST_GAP_S
    assert [request.state.free_in_ms for request in device.sent] == [950.0], "the newest"


async def test_a_new_sibling_hears_all_that_stands() -> None:
    device = with_a_sibling()
    device.over = [ready(100.0)]
    assert device.post(0.0) == ["state", "offer"]
    device.exchange.siblings(2)
    device.over = [Surplus(device.over[0].unit, 10.0, 90.0)]
    assert device.post(0.01) == ["state", "offer"]


async def test_a_stream_that_is_gone_is_told_nothing_and_a_new_one_starts_over() -> None:
    device = with_a_sibling()
    device.exchange.granted(3)
    assert device.post(0.0) == ["state"]
    device.is_up = False
    assert device.post(1.0) == []
    device.exchange.reset()
    device.is_up = True
    assert device.post(2.0) == [], "nobody is known to be there"
    device.exchange.siblings(1)
    assert device.post(3.0) == ["state"]
    assert device.sent[0].state.grants_seen == 0


async def test_one_that_stops_has_no_room_and_offers_all_that_is_ready() -> None:
    device = with_a_sibling()
    device.post(0.0)
    for stage in (Stage.READY, Stage.RUNNING, Stage.ADMITTING):
        device.held.add(unit(id=stage.name, stage=stage, deadline_s=5.0))
    device.exchange.leave()
    assert device.post(1.0) == ["state", "offer"]
    assert device.sent[0].state.room_ms == 0.0
    [offered] = device.sent[1].offer.units
    assert (offered.unit_id, offered.starts_in_ms) == ("READY", 4_000.0)


async def test_what_nobody_wanted_for_a_moment_goes_to_the_queue() -> None:
    device = Device()
    device.over = [ready(500.0), ready(400.0, lane="another"), ready(300.0, deliveries=2), ready(1.0)]
    device.exchange.idle_lanes = LANES
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert device.post(began_s) == []
    assert not device.returned, "a sibling may take it"
    await until(lambda: device.returned)
    assert loop.time() - began_s >= HOP_S
    assert device.returned == [[device.over[0].unit]]
    assert not device.sent, "there are no siblings"


async def test_a_unit_that_was_no_longer_over_is_offered_anew() -> None:
    device = with_a_sibling()
    over = ready(500.0)
    device.over = [over]
    device.post(1.0)
    assert over.unit.offered_s == 1.0
    device.over = []
    device.post(2.0)
    assert over.unit.offered_s is None
    device.over = [over]
    device.post(3.0)
    assert over.unit.offered_s == 3.0
