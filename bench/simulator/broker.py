"""The broker: a queue for each lane and class, and pulls on it as JetStream serves them."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple, Protocol

from bench.simulator.clock import Clock
from bench.simulator.latencies import hop_s
from shoal_common.limits import ACK_WAIT_S
from shoal_worker.decisions.pull_plan import Kind, Order


class Message(NamedTuple):
    """One delivery of one text."""

    index: int
    put_backs: int
    deliveries: int
    pending: int
    """Messages that wait behind it."""
    published_s: float


class Puller(Protocol):
    """Who pulls."""

    def pulled(self, order: Order, messages: list[Message], ended: bool) -> None:
        """What a pull brought, and whether a status ended it."""
        ...

    def peeked(self, order: Order, waits: bool) -> None:
        """What a peek saw."""
        ...


class _Stored(NamedTuple):
    index: int
    put_backs: int
    deliveries: int
    published_s: float


class _Waiting(NamedTuple):
    order: Order
    puller: Puller
    expires_s: float


class _Queue:
    def __init__(self) -> None:
        self.stored: deque[_Stored] = deque()
        self.waiting: deque[_Waiting] = deque()


class Broker:
    """Messages are kept until they are acknowledged; what is not within `ACK_WAIT_S` is delivered again, first."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._unacked: dict[int, tuple[str, str]] = {}

    def publish(self, lane: str, work_class: str, index: int, put_backs: int = 0) -> None:
        """A message comes in."""
        self._put((lane, work_class), _Stored(index, put_backs, 0, self._clock.now_s), first=False)

    def pull(self, order: Order, puller: Puller) -> None:
        """A worker sends a pull."""
        self._clock.after(hop_s(self._rng), self._pulled, order, puller)

    def _queue(self, key: tuple[str, str]) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        return queue

    def _put(self, key: tuple[str, str], stored: _Stored, *, first: bool) -> None:
        queue = self._queue(key)
        while queue.waiting:
            waiting = queue.waiting.popleft()
            if waiting.expires_s > self._clock.now_s:
                self._deliver(key, waiting.order, waiting.puller, [self._sent(key, stored, 0)], ended=False)
                return
        if first:
            queue.stored.appendleft(stored)
        else:
            queue.stored.append(stored)

    def _pulled(self, order: Order, puller: Puller) -> None:
        key = (order.lane, order.work_class)
        queue = self._queue(key)
        stored = queue.stored
        if order.kind is Kind.PEEK:
            self._clock.after(hop_s(self._rng), puller.peeked, order, bool(stored))
            return
        if order.waits and not stored:
            expires_s = self._clock.now_s + order.expires_s
            waiting = _Waiting(order, puller, expires_s)
            queue.waiting.append(waiting)
            self._clock.at(expires_s, self._expired, queue, waiting)
            return
        count = min(order.batch, len(stored))
        pending = len(stored)
        messages = []
        for _ in range(count):
            pending -= 1
            messages.append(self._sent(key, stored.popleft(), pending))
        self._deliver(key, order, puller, messages, ended=count < order.batch)

    def _expired(self, queue: _Queue, waiting: _Waiting) -> None:
        for number, other in enumerate(queue.waiting):
            if other is waiting:
                del queue.waiting[number]
                self._clock.after(hop_s(self._rng), waiting.puller.pulled, waiting.order, [], True)
                return

    def _sent(self, key: tuple[str, str], stored: _Stored, pending: int) -> Message:
        return Message(stored.index, stored.put_backs, stored.deliveries + 1, pending, stored.published_s)

    def _deliver(self, key: tuple[str, str], order: Order, puller: Puller, messages: list[Message], *, ended: bool) -> None:
        self._clock.after(hop_s(self._rng), puller.pulled, order, messages, ended)
