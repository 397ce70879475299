"""The broker: a queue for each lane and class, and pulls on it as JetStream serves them."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple, Protocol

from bench.simulator.clock import Clock
from bench.simulator.latencies import hop_s
from shoal_worker.decisions.pull_plan import Kind, Order


class Message(NamedTuple):
    """One delivery of a text: `number` is its index in the demand."""

    number: int
    put_backs: int
    deliveries: int
    published_s: float
    pending: int
    """Messages that waited behind it."""


class Puller(Protocol):
    """Who pulls."""

    @property
    def is_alive(self) -> bool:
        """Whether anybody hears the answers."""
        ...

    def pulled(self, order: Order, messages: list[Message], ended: bool) -> None:
        """What a pull brought, and whether a status ended it."""
        ...

    def peeked(self, order: Order, is_something: bool) -> None:
        """What a peek saw."""
        ...


class _Queue:
    def __init__(self) -> None:
        self.stored: deque[Message] = deque()
        self.waiting: deque[tuple[float, Order, Puller]] = deque()


class Broker:
    """Waiting pulls are served a message each, in the order in which they came."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._queues: dict[tuple[str, str], _Queue] = {}

    def publish(self, lane: str, work_class: str, index: int, put_backs: int = 0, deliveries: int = 0) -> None:
        """A message comes in. One that was delivered before comes first."""
        queue = self._queue(lane, work_class)
        message = Message(index, put_backs, deliveries + 1, self._clock.now_s, 0)
        while queue.waiting:
            expires_s, order, puller = queue.waiting.popleft()
            if expires_s > self._clock.now_s and puller.is_alive:
                self._answer(puller.pulled, order, [message], False)
                return
        if deliveries:
            queue.stored.appendleft(message)
        else:
            queue.stored.append(message)

    def pull(self, order: Order, puller: Puller) -> None:
        """A worker sends a pull."""
        self._clock.after(hop_s(self._rng), self._serve, order, puller)

    def _queue(self, lane: str, work_class: str) -> _Queue:
        queue = self._queues.get((lane, work_class))
        if queue is None:
            queue = self._queues[lane, work_class] = _Queue()
        return queue

    def _serve(self, order: Order, puller: Puller) -> None:
        queue = self._queue(order.lane, order.work_class)
        stored = queue.stored
        if order.kind is Kind.PEEK:
            self._answer(puller.peeked, order, bool(stored))
        elif order.kind is Kind.WAIT and not stored:
            waiting = (self._clock.now_s + order.expires_s, order, puller)
            queue.waiting.append(waiting)
            self._clock.at(waiting[0], self._expire, queue, waiting)
        elif puller.is_alive:
            count = min(order.batch, len(stored))
            last = len(stored) - 1
            messages = [stored.popleft()._replace(pending=last - number) for number in range(count)]
            self._answer(puller.pulled, order, messages, count < order.batch)

    def _expire(self, queue: _Queue, waiting: tuple[float, Order, Puller]) -> None:
        for number, other in enumerate(queue.waiting):
            if other is waiting:
                del queue.waiting[number]
                _, order, puller = waiting
                self._answer(puller.pulled, order, [], True)
                return

    def _answer(self, heard, order: Order, *what) -> None:
        self._clock.after(hop_s(self._rng), heard, order, *what)
