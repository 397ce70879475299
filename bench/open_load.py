"""An open-loop load in a process of its own: one-text requests at the times of a Poisson process, answered or not.

`run` starts it. What is answered late counts from the time at which the request was due, so that a generator
that falls behind shows as latency and not as a lower load.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import numpy as np
import uvloop

from shoal.v1 import inference_pb2 as pb
from tests.support.texts import text

MEDIAN_TOKENS = 200
SIGMA = 0.6
MOST_TOKENS = 500
SPECIAL_TOKENS = 2
TEXTS = 512
"""Distinct texts."""


@dataclass(frozen=True)
class Plan:
    """What is sent."""

    address: str
    models: list[str]
    rate: float
    """Requests a second over all models."""
    seconds: float
    """Length of the window that counts."""
    seed: int = 1
    warm_up_s: float = 5.0
    timeout_s: float = 60.0
    zipf: float = 0.0
    """Exponent of the models' popularity; 0 is even."""
    tokens: int = MEDIAN_TOKENS
    sigma: float = SIGMA
    token: str = ""
    """Bearer token of the caller."""


def mean_tokens(tokens: int = MEDIAN_TOKENS, sigma: float = SIGMA) -> float:
    """Mean length of the texts, special tokens included."""
    rng = random.Random(0)
    return sum(_tokens(rng, tokens, sigma) for _ in range(20_000)) / 20_000


def run(plan: Plan) -> dict[str, Any]:
    """Runs a load to its end.

    Returns sent, answered, refused (by status), p50_ms, p99_ms, mean_batch_texts, busy_by_worker (share of the window),
    cpu_cores of the generator.
    """
    return start(plan)()


def start(plan: Plan):
    """Starts a load; what it returns waits for its end and gives its result."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.open_load", json.dumps(asdict(plan))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def result() -> dict[str, Any]:
        out, err = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the load generator failed: {err[-2000:]}")
        return json.loads(out)

    return result


def _tokens(rng: random.Random, median: int, sigma: float) -> int:
    return max(SPECIAL_TOKENS + 1, min(MOST_TOKENS, round(rng.lognormvariate(math.log(median), sigma))))


class _Load:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        words = random.Random(plan.seed + 1)
        texts = [text(words, _tokens(words, plan.tokens, plan.sigma) - SPECIAL_TOKENS) for _ in range(TEXTS)]
        options = pb.EncodeOptions(max_tokens=MOST_TOKENS)
        self.requests = {
            model: [
                pb.EncodeRequest(model=model, options=options, items=[pb.Item(text=each)]).SerializeToString()
                for each in texts
            ]
            for model in plan.models
        }
        self.weights = [1 / (rank + 1) ** plan.zipf for rank in range(len(plan.models))]
        self.latencies_ms: list[float] = []
        self.refused: Counter[str] = Counter()
        self.runs: list[tuple[str, float]] = []
        self.sent = 0

    async def run(self) -> dict[str, Any]:
        plan = self.plan
        metadata = [("authorization", f"Bearer {plan.token}")] if plan.token else None
        async with grpc.aio.insecure_channel(plan.address) as channel, asyncio.TaskGroup() as group:
            call = channel.unary_unary("/shoal.v1.InferenceService/Encode")
            began = time.perf_counter()
            window = (began + plan.warm_up_s, began + plan.warm_up_s + plan.seconds)
            due, cpu = began, time.process_time()
            while (due := due + self.rng.expovariate(plan.rate)) < window[1] + plan.warm_up_s / 2:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                model = self.rng.choices(plan.models, self.weights)[0]
                payload = self.requests[model][self.rng.randrange(TEXTS)]
                group.create_task(self.one(call, payload, metadata, due, window))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - began
        return self.result(cpu / wall)

    async def one(self, call, payload: bytes, metadata, due: float, window: tuple[float, float]) -> None:
        counts = window[0] <= due < window[1]
        self.sent += counts
        try:
            answer = await call(payload, timeout=self.plan.timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if counts:
                self.refused[error.code().name] += 1
            return
        ended = time.perf_counter()
        if counts:
            self.latencies_ms.append((ended - due) * 1e3)
        if window[0] <= ended < window[1]:
            response = pb.EncodeResponse.FromString(answer)
            self.runs += [(run.worker, run.compute_ms) for run in response.provenance.runs]

    def result(self, cores: float) -> dict[str, Any]:
        batches = Counter(self.runs)  # Units of one batch share its duration to the last bit.
        busy_ms: defaultdict[str, float] = defaultdict(float)
        for worker, compute_ms in batches:
            busy_ms[worker] += compute_ms
        measured = np.sort(np.array(self.latencies_ms or [math.nan]))
        # What was not answered is later than anything that was.
        late = self.sent - len(self.latencies_ms)
        ranked = np.concatenate([measured, np.full(late, self.plan.timeout_s * 1e3)])
        return {
            "sent": self.sent,
            "answered": len(self.latencies_ms),
            "refused": dict(self.refused),
            "p50_ms": float(ranked[len(ranked) // 2]),
            "p99_ms": float(ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]),
            "mean_batch_texts": len(self.runs) / max(1, len(batches)),
            "busy_by_worker": {name: ms / 1e3 / self.plan.seconds for name, ms in sorted(busy_ms.items())},
            "cpu_cores": cores,
        }


if __name__ == "__main__":
    uvloop.install()
    print(json.dumps(asyncio.run(_Load(Plan(**json.loads(sys.argv[1]))).run())))
