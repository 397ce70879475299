"""Servers behind a router: a queue for each device and model, and a batch of what waits whenever a device is free.

What is assumed of them, each point to their advantage:

- A batch is formed the moment a device falls free, at no cost, from texts whose exact length is known. Dynamic
  batching in Triton Inference Server without `max_queue_delay_microseconds` and the queue of
  text-embeddings-inference (`max_batch_tokens`) do so. Waiting for more texts only adds to p99 here.
- Each model has a queue on the device, and the device takes the one whose head came first, as Triton does for
  models that compete for a device. Taking the longest queue instead gives no more.
- A batch is bounded by the same predicted milliseconds as Shoal's, which is a bound in tokens.
- A device changes models at the cost of a batch of its own and no more; all models fit on all devices.
- Affinity is a placement that fits the demand as it is in the mean over the whole run, known beforehand. In turn is
  what a Kubernetes Service for each model comes to.
- A router knows at once what it sent and what came back; its view of it is `age_s` old. 0 is one proxy that sees
  all traffic (nginx `least_conn`, Envoy `LEAST_REQUEST`); 20 to 300 ms are routers that read their servers'
  metrics (those of vLLM and of Kubernetes' inference gateway poll every 50 to 200 ms) or one proxy of several,
  which learns of the others' requests by way of the servers.
"""

from __future__ import annotations

from collections import deque

from bench.simulator.fleet import Computed, Scene
from bench.simulator.hardware import BATCH_MS, TOKEN_US, Hardware, Job
from bench.simulator.latencies import ROUTED_S
from bench.simulator.routers import Router
from bench.simulator.setting import Setting


class Server:
    """One device and its queues."""

    def __init__(self, number: int, scene: Scene, router: Router, bound_ms: float) -> None:
        self._number = number
        self._scene = scene
        self._router = router
        self._bound_tokens = (bound_ms - BATCH_MS) * 1e3 / TOKEN_US
        self._hardware = Hardware(scene.clock, scene.rng)
        self._queues: dict[int, deque[int]] = {}
        self.computed = Computed(self._hardware)

    def take(self, index: int, model: int) -> None:
        """A text was routed here."""
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = deque()
        queue.append(index)
        if not self._hardware.is_running:
            self._start()

    def _start(self) -> None:
        queue = min((queue for queue in self._queues.values() if queue), key=lambda queue: queue[0], default=None)
        if queue is None:
            return
        tokens = self._scene.demand.tokens
        batch = [queue.popleft()]
        total = tokens[batch[0]]
        while queue and total + tokens[queue[0]] <= self._bound_tokens:
            total += tokens[queue[0]]
            batch.append(queue.popleft())
        self.computed.add(len(batch), total)
        self._hardware.run(Job(total, self._done, (batch,)))

    def _done(self, batch: list[int]) -> None:
        answered_s = self._scene.clock.now_s + ROUTED_S
        for index in batch:
            self._scene.record.answered(index, answered_s)
        self._router.load(self._number, -len(batch))
        self._start()


class PushFleet:
    """All devices behind one router."""

    def __init__(self, scene: Scene, setting: Setting, router: Router) -> None:
        self._router = router
        self._models = scene.demand.models
        self._servers = [Server(number, scene, router, setting.bound_ms) for number in range(setting.devices)]
        self.computed = [server.computed for server in self._servers]

    def arrive(self, index: int) -> None:
        """A text comes to the router."""
        model = self._models[index]
        device = self._router.choose(model)
        self._router.load(device, 1)
        self._servers[device].take(index, model)
