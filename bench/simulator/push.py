"""Servers behind a router: a queue for each device, and a batch of what waits whenever the device is free.

What is assumed of them, each to their advantage:

- A batch is formed the moment a device falls free, at no cost, of texts whose exact length is known. Dynamic
  batching of Triton Inference Server with no `max_queue_delay_microseconds` does so, as does the queue of
  text-embeddings-inference (`max_batch_tokens`). To wait for more texts was tried and helps none of them here.
- Each model has a queue of its own on the device, and the device takes the one whose head waited longest, as
  Triton's rate limiter and a plain FIFO over models do. Taking the longest queue was tried too.
- A batch is bounded by the same predicted milliseconds as Shoal's, which is a bound in tokens.
- Devices hold every model that is routed to them and switch at no cost other than that of a batch of its own.
- A router knows its own sends at once; its view of the others' is `age_s` old. View 0 is one router that sees
  everything (nginx `least_conn`, Envoy `LEAST_REQUEST` in a single proxy); 20 to 300 ms are routers that read
  their servers' metrics (vLLM's and Kubernetes' inference routers scrape at 50 to 200 ms and more) or several
  proxies that each see a part.
"""

from __future__ import annotations

import random
from collections import deque

from bench.simulator.clock import Clock
from bench.simulator.demand import Demand
from bench.simulator.hardware import BATCH_MS, TOKEN_US, Hardware, Job
from bench.simulator.latencies import ROUTED_S
from bench.simulator.record import Record
from bench.simulator.routers import Router


class Server:
    """One device's queues."""

    def __init__(
        self, number: int, clock: Clock, demand: Demand, record: Record, router: Router, bound_ms: float,
        rng: random.Random,
    ) -> None:
        self.hardware = Hardware(clock, rng)
        self._number = number
        self._clock = clock
        self._demand = demand
        self._record = record
        self._router = router
        self._bound_tokens = (bound_ms - BATCH_MS) * 1e3 / TOKEN_US
        self._queues: dict[int, deque[int]] = {}
        self.batch_texts = 0
        self.batch_tokens = 0

    def take(self, index: int) -> None:
        """A text was routed here."""
        model = self._demand.models[index]
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = deque()
        queue.append(index)
        if not self.hardware.is_running:
            self._start()

    def _start(self) -> None:
        queue = min((queue for queue in self._queues.values() if queue), key=lambda queue: queue[0], default=None)
        if queue is None:
            return
        tokens = self._demand.tokens
        batch = [queue.popleft()]
        total = tokens[batch[0]]
        while queue and total + tokens[queue[0]] <= self._bound_tokens:
            total += tokens[queue[0]]
            batch.append(queue.popleft())
        self.batch_texts += len(batch)
        self.batch_tokens += total
        self.hardware.run(Job(total, self._done, (batch,)))

    def _done(self, batch: list[int]) -> None:
        answered_s = self._clock.now_s + ROUTED_S
        for index in batch:
            self._record.answered(index, answered_s)
        self._router.load(self._number, -len(batch))
        self._start()


class Servers:
    """All devices behind one router."""

    def __init__(
        self, clock: Clock, demand: Demand, record: Record, router: Router, devices: int, bound_ms: float,
        rng: random.Random,
    ) -> None:
        self._router = router
        self._models = demand.models
        self.servers = [Server(n, clock, demand, record, router, bound_ms, rng) for n in range(devices)]

    def arrive(self, index: int) -> None:
        """A text comes to the router."""
        device = self._router.choose(self._models[index])
        self._router.load(device, 1)
        self.servers[device].take(index)
