"""A push gateway, made for comparison only: the mesh's own gateway with a router in place of the shared queue.

Every worker has a pool, and with it a queue, of its own; model `m` is registered in each as `m-<pool>`. The
router chooses a worker for each request by what it knows of them, which may be old, and the worker's dynamic
batching does the rest. Run as `python -m bench.push_gateway` with the gateway's settings and
BENCH_ROUTER='{"policy": …, "pools": […], "view_ms": …, "seed": …}'.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Sequence

from shoal.view.v1 import view_pb2
from shoal_common import process
from shoal_common.blobs import Data
from shoal_gateway import server
from shoal_gateway.dispatch import Caller, Dispatch
from shoal_gateway.settings import GatewaySettings

POLICIES = ("round_robin", "least_outstanding", "power_of_two", "affinity")


class Router:
    """Chooses workers. Its view of their outstanding requests is refreshed each `view_ms`; 0 is always exact."""

    def __init__(self, policy: str, pools: Sequence[str], view_ms: float, seed: int) -> None:
        assert policy in POLICIES, f"{policy!r} is none of {POLICIES}"
        self._policy = policy
        self._pools = list(pools)
        self._view_s = view_ms / 1e3
        self._rng = random.Random(seed)
        self._turn = itertools.count()
        self._outstanding = dict.fromkeys(self._pools, 0)
        self._seen = dict(self._outstanding)
        self._seen_s = 0.0

    def begin(self, model: str) -> str:
        """The pool that a request goes to."""
        pool = self._choose(model)
        self._outstanding[pool] += 1
        return pool

    def end(self, pool: str) -> None:
        """A request was answered."""
        self._outstanding[pool] -= 1

    def _choose(self, model: str) -> str:
        if self._policy == "round_robin":
            return self._pools[next(self._turn) % len(self._pools)]
        if self._policy == "affinity":
            # Models dealt out evenly, as an operator would place them.
            return self._pools[int(model.rsplit("m", 1)[-1]) % len(self._pools)]
        view = self._view()
        pools = self._rng.sample(self._pools, 2) if self._policy == "power_of_two" else self._pools
        least = min(view[pool] for pool in pools)
        return self._rng.choice([pool for pool in pools if view[pool] == least])

    def _view(self) -> dict[str, int]:
        if not self._view_s:
            return self._outstanding
        now_s = time.monotonic()
        if now_s - self._seen_s >= self._view_s:
            self._seen, self._seen_s = dict(self._outstanding), now_s
        return self._seen


class PushDispatch(Dispatch):
    """Sends each request to the queue of the worker that the router chose."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self._router = Router(**json.loads(os.environ["BENCH_ROUTER"]))

    async def encode(self, raw: Data, caller: Caller) -> bytes:
        request = view_pb2.RequestView.FromString(bytes(raw))
        pool = self._router.begin(request.model)
        request.model = f"{request.model}-{pool}"
        try:
            return await super().encode(request.SerializeToString(), caller)
        finally:
            self._router.end(pool)


if __name__ == "__main__":
    server.Dispatch = PushDispatch
    process.run("gateway", GatewaySettings, server.main)
