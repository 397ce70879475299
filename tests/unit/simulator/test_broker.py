"""The simulated broker serves pulls as JetStream does."""

from __future__ import annotations

import random

from bench.simulator.broker import Broker, Message
from bench.simulator.clock import Clock
from shoal_worker.decisions.pull_plan import Kind, Order

LANE, CLASS = "lane", "interactive"


class Puller:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.is_alive = True
        self.got: list[tuple[int, list[int], bool]] = []
        self.seen: list[bool] = []

    def pulled(self, order: Order, messages: list[Message], ended: bool) -> None:
        self.got.append((order.pull_id, [message.number for message in messages], ended))

    def peeked(self, order: Order, is_something: bool) -> None:
        self.seen.append(is_something)


def order(pull_id: int, kind: Kind, batch: int = 1) -> Order:
    return Order(pull_id, LANE, CLASS, batch, kind, expires_s=0.1)


def scene() -> tuple[Clock, Broker]:
    clock = Clock()
    return clock, Broker(clock, random.Random(1))


def run(clock: Clock) -> None:
    clock.run([], lambda index: None, 10.0)


def test_a_drain_takes_what_is_there_and_says_when_that_was_all() -> None:
    clock, broker = scene()
    puller = Puller()
    for number in range(5):
        broker.publish(LANE, CLASS, number)
    broker.pull(order(1, Kind.DRAIN, 3), puller)
    run(clock)
    broker.pull(order(2, Kind.DRAIN, 3), puller)
    run(clock)
    assert puller.got == [(1, [0, 1, 2], False), (2, [3, 4], True)]


def test_waiting_pulls_are_served_a_message_each_in_the_order_in_which_they_came() -> None:
    clock, broker = scene()
    pullers = [Puller() for _ in range(3)]
    for number, puller in enumerate(pullers):
        clock.at(0.01 * number, broker.pull, order(number, Kind.WAIT), puller)
    clock.at(0.05, broker.publish, LANE, CLASS, 7)
    clock.at(0.05, broker.publish, LANE, CLASS, 8)
    run(clock)
    assert [puller.got for puller in pullers] == [[(0, [7], False)], [(1, [8], False)], [(2, [], True)]]


def test_a_waiting_pull_of_a_worker_that_is_gone_gets_nothing() -> None:
    clock, broker = scene()
    gone, there = Puller(), Puller()
    broker.pull(order(1, Kind.WAIT), gone)
    clock.at(0.01, broker.pull, order(2, Kind.WAIT), there)
    gone.is_alive = False
    clock.at(0.02, broker.publish, LANE, CLASS, 3)
    run(clock)
    assert there.got == [(2, [3], False)]


def test_a_peek_takes_nothing() -> None:
    clock, broker = scene()
    puller = Puller()
    broker.pull(order(1, Kind.PEEK), puller)
    run(clock)
    broker.publish(LANE, CLASS, 1)
    broker.pull(order(2, Kind.PEEK), puller)
    run(clock)
    assert puller.seen == [False, True]
    broker.pull(order(3, Kind.DRAIN, 2), puller)
    run(clock)
    assert puller.got == [(3, [1], True)]


def test_what_is_delivered_again_comes_first() -> None:
    clock, broker = scene()
    puller = Puller()
    broker.publish(LANE, CLASS, 1)
    broker.publish(LANE, CLASS, 2, put_backs=1)
    broker.publish(LANE, CLASS, 3, deliveries=1)
    broker.pull(order(1, Kind.DRAIN, 9), puller)
    run(clock)
    assert puller.got == [(1, [3, 1, 2], True)]
