"""The other side of the comparison: the packed forward alone, in a process of its own, with nothing around it.

`Bare` starts the process; it answers one JSON line for each that it is sent.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np

BATCH_TEXTS = 64
CONFIGURATIONS = ((1, 2), (2, 1))
"""streams x threads to choose the best of."""


class Bare:
    """The bare forward as seen from the benchmark."""

    def __enter__(self) -> Bare:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bare"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        self._process.stdout.readline()  # It is loaded: from here on it uses the cores only when it is asked to.
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)

    def throughput(self, lengths: str, seed: int, seconds: float) -> dict[str, float]:
        """Tokens a second of each configuration, as "streams x threads"."""
        return {
            f"{streams}x{threads}": self._ask(
                {"ask": "throughput", "lengths": lengths, "seed": seed, "seconds": seconds}
                | {"streams": streams, "threads": threads}
            )["tokens_per_s"]
            for streams, threads in CONFIGURATIONS
        }

    def single_ms(self, lengths: str, first: int, count: int, pause_ms: float) -> list[float]:
        """Milliseconds of single forwards of the texts from `first` on, with all threads, each after a pause."""
        question = {"ask": "single", "lengths": lengths, "seed": 0, "first": first, "count": count}
        return self._ask({**question, "pause_ms": pause_ms})["ms"]

    def _ask(self, question: dict) -> dict:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    import torch

    from bench import texts
    from shoal_common.profile import parse_profile
    from shoal_registry import catalogue
    from shoal_torch_runtime import warm
    from shoal_torch_runtime.encoder import load
    from shoal_torch_runtime.model_spec import ModelSpec

    def thread(cores: int) -> ThreadPoolExecutor:
        """A thread that calls torch with so many cores. One wide one alone: a second pool of OpenMP slows both."""

        def initialize() -> None:
            torch.get_num_threads()
            torch.set_num_threads(cores)

        return ThreadPoolExecutor(1, initializer=initialize)

    warm.quieten()
    wide, narrow = thread(2), [thread(1), thread(1)]
    profile = parse_profile(catalogue.chosen("minilm", folder="")["minilm"])
    encoder = wide.submit(load, texts.model_folder(), ModelSpec.parse(profile.canonical_json())).result()
    for each in (wide, *narrow):
        each.submit(encoder.warm_up).result()

    def batches(question: dict, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
        ids = texts.tokenized(texts.make(question["lengths"], texts.COUNT, question["seed"]))
        packed = []
        for at in range(0, len(ids), size):
            rows = sorted(ids[at : at + size], key=len)
            packed.append((np.concatenate(rows).astype(np.int32), np.array([len(row) for row in rows], np.int32)))
        return packed

    def throughput(question: dict) -> dict:
        work = batches(question, BATCH_TEXTS)
        streams = [wide] if question["threads"] == 2 else narrow
        end = time.perf_counter() + question["seconds"]

        def stream(number: int) -> int:
            tokens, at = 0, number
            while time.perf_counter() < end:
                ids, lengths = work[at % len(work)]
                encoder.forward(ids, lengths)
                tokens += len(ids)
                at += len(streams)
            return tokens

        started = time.perf_counter()
        running = [pool.submit(stream, number) for number, pool in enumerate(streams)]
        tokens = sum(each.result() for each in running)
        return {"tokens_per_s": tokens / (time.perf_counter() - started)}

    def single(question: dict) -> dict:
        def forwards() -> list[float]:
            measured = []
            for ids, lengths in batches(question, 1)[question["first"] :][: question["count"]]:
                time.sleep(question["pause_ms"] / 1000)
                started = time.perf_counter()
                encoder.forward(ids, lengths)
                measured.append((time.perf_counter() - started) * 1000)
            return measured

        return {"ms": wide.submit(forwards).result()}

    print("{}", flush=True)
    answers = {"throughput": throughput, "single": single}
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(answers[question["ask"]](question)), flush=True)


if __name__ == "__main__":
    _serve()
