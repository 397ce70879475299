"""Load whose every answer is checked by value: callers without retries, so that the mesh is tested, not the SDK."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import grpc
import numpy as np

from shoal.v1 import inference_pb2 as pb
from tests.support import reference, texts
from tests.support.raw import RawClient, Refusal

CALLERS = 6
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Failure:
    """A call that did not end OK."""

    code: str
    text: str
    seconds: float


class CheckedLoad:
    """Callers in threads, each sending 1 to 8 texts at a time, while the block runs."""

    def __init__(self, address: str, *, timeout_s: float, seed: int = 1) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._seed = seed
        self._texts = texts.mixed(seed, 64, most_tokens=60)
        self._expected = reference.encode(self._texts)
        self._stop = threading.Event()
        self._lock = threading.Condition()
        self._threads = [threading.Thread(target=self._call, args=(n,), daemon=True) for n in range(CALLERS)]
        self.answered = 0
        self.wrong: list[str] = []
        self.failed: list[Failure] = []

    def __enter__(self) -> CheckedLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self._timeout_s + 10)
        if kind is None:
            assert not any(thread.is_alive() for thread in self._threads), "a call outlived its deadline"

    def wait_for_answers(self, count: int, timeout_s: float = 60) -> None:
        """Returns once so many more calls were answered rightly."""
        with self._lock:
            goal = self.answered + count
            assert self._lock.wait_for(lambda: self.answered >= goal, timeout_s), (
                f"{self.answered} of {goal} answers; failed: {self.failed[-3:]}; wrong: {self.wrong[-3:]}"
            )

    def run_for(self, seconds: float) -> None:
        """Lets the load run on."""
        self._stop.wait(seconds)

    def _call(self, number: int) -> None:
        rng = random.Random(self._seed * 1000 + number)
        with grpc.insecure_channel(self._address) as channel:
            client = RawClient(channel)
            while not self._stop.is_set():
                picks = [rng.randrange(len(self._texts)) for _ in range(rng.randint(1, 8))]
                self._one(client, picks)

    def _one(self, client: RawClient, picks: list[int]) -> None:
        request = pb.EncodeRequest(model="minilm", items=[pb.Item(id=str(n), text=self._texts[n]) for n in picks])
        started = time.monotonic()
        try:
            response = client.encode(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            refusal = Refusal(error)
            with self._lock:
                self.failed.append(Failure(refusal.code.name, refusal.text, time.monotonic() - started))
            self._stop.wait(0.05)
            return
        wrong = problem(response, picks, self._expected)
        with self._lock:
            if wrong:
                self.wrong.append(wrong)
            else:
                self.answered += 1
                self._lock.notify_all()


def problem(response: pb.EncodeResponse, picks: Sequence[int], expected: np.ndarray) -> str:
    """What is wrong with the answer for texts that are rows of `expected` and have their numbers for ids; else ""."""
    if [result.id for result in response.results] != [str(n) for n in picks]:
        return f"ids {[result.id for result in response.results]} for {picks}"
    for result, n in zip(response.results, picks, strict=True):
        if result.status.code:
            return f"item {n}: {result.status.reason} {result.status.message}"
        off = float(np.abs(np.frombuffer(result.dense.data, "<f4") - expected[n]).max())
        if not off <= TOLERANCE:
            return f"item {n} is off by {off}"
    return ""
