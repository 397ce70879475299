"""The load generator: a process of its own, so that its processor time is reported apart.

Requests are serialized before the clock starts and answers are kept as bytes until it has stopped.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from bench import texts
from shoal.v1 import inference_pb2 as pb

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
EDGE_S = 1.5
"""Load before and after the window that counts; longer where a request itself takes longer."""
LONG_EDGE_S = 8.0


def run(
    address: str, kind: str, lengths: str, seconds: float, seed: int, in_flight: int, model: str = "minilm"
) -> dict[str, Any]:
    """Runs a load in its own process: `unary64`, `infer1` (streams of one text) or `unary1`.

    Returns texts_per_s, tokens_per_s, p50_ms, p99_ms, cpu_cores of the generator, mean_batch_texts, failed,
    answered (requests, over all of the load) and loaded_s: how long the mesh was under load in all.
    """
    arguments = [address, kind, lengths, str(seconds), str(seed), str(in_flight), model]
    done = subprocess.run([sys.executable, "-m", "bench.load", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Load:
    """One run: callers that send as fast as they are answered."""

    def __init__(self, lengths: str, seed: int, texts_a_request: int, model: str) -> None:
        sample = texts.make(lengths, texts.COUNT, seed)
        counts = [len(ids) for ids in texts.tokenized(sample)]
        self.requests: list[tuple[bytes, int]] = []
        for at in range(0, texts.COUNT, texts_a_request):
            part = sample[at : at + texts_a_request]
            request = pb.EncodeRequest(model=model, items=[pb.Item(text=text) for text in part])
            self.requests.append((request.SerializeToString(), sum(counts[at : at + texts_a_request])))
        random.Random(seed).shuffle(self.requests)
        self.texts_a_request = texts_a_request
        self.next = 0
        self.answers: list[tuple[float, float, int, bytes]] = []
        self.failed = 0

    def take(self) -> tuple[bytes, int]:
        self.next += 1
        return self.requests[self.next % len(self.requests)]

    async def unary(self, channel: grpc.aio.Channel, until: float) -> None:
        call = channel.unary_unary("/shoal.v1.InferenceService/Encode")
        while time.perf_counter() < until:
            payload, tokens = self.take()
            started = time.perf_counter()
            try:
                answer = await call(payload, timeout=60)
            except grpc.aio.AioRpcError:
                self.failed += 1
                continue
            self.answers.append((started, time.perf_counter(), tokens, answer))

    async def stream(self, channel: grpc.aio.Channel, until: float) -> None:
        """One Infer stream with one request in flight."""
        answered: asyncio.Queue[None] = asyncio.Queue()
        sent: list[tuple[float, int]] = []

        async def requests() -> AsyncIterator[bytes]:
            while time.perf_counter() < until:
                payload, tokens = self.take()
                sent.append((time.perf_counter(), tokens))
                yield b"\x0a\x01r\x52" + _varint(len(payload)) + payload
                await answered.get()

        async for answer in channel.stream_stream("/shoal.v1.InferenceService/Infer")(requests(), timeout=120):
            started, tokens = sent[-1]
            self.answers.append((started, time.perf_counter(), tokens, answer))
            answered.put_nowait(None)


async def _main(
    address: str, kind: str, lengths: str, seconds: float, seed: int, in_flight: int, model: str
) -> dict[str, Any]:
    load = Load(lengths, seed, 64 if kind == "unary64" else 1, model)
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        edge_s = LONG_EDGE_S if (kind, lengths) == ("unary64", "128") else EDGE_S
        began = time.perf_counter()
        begin = began + edge_s
        end = begin + seconds
        one = load.stream if kind == "infer1" else load.unary
        callers = asyncio.gather(*[one(channel, end + edge_s) for _ in range(in_flight)])
        await asyncio.sleep(edge_s)
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - cpu
        await callers
        loaded_s = time.perf_counter() - began
    # A request counts by the share of its time that lies in the window: with long requests the edges matter.
    shares = [max(0.0, min(stop, end) - max(start, begin)) / (stop - start) for start, stop, _, _ in load.answers]
    counted = [a for a in load.answers if begin <= a[1] <= end]
    latencies = sorted((stop - start) * 1000 for start, stop, _, _ in counted)
    return {
        "texts_per_s": sum(shares) * load.texts_a_request / seconds,
        "tokens_per_s": sum(share * a[2] for share, a in zip(shares, load.answers, strict=True)) / seconds,
        "p50_ms": latencies[len(latencies) // 2] if latencies else None,
        "p99_ms": latencies[int(len(latencies) * 0.99)] if latencies else None,
        "cpu_cores": cpu / seconds,
        "mean_batch_texts": _mean_batch([a[3] for a in counted], kind),
        "failed": load.failed,
        "answered": len(load.answers),
        "loaded_s": loaded_s,
    }


def _mean_batch(answers: list[bytes], kind: str) -> float:
    """Texts a batch: units of one batch share its duration on the device to the last bit."""
    batches: dict[tuple[str, float], int] = {}
    for payload in answers:
        response = pb.InferResponse.FromString(payload).encode if kind == "infer1" else None
        for run in (response or pb.EncodeResponse.FromString(payload)).provenance.runs:
            key = (run.worker, run.compute_ms)
            batches[key] = batches.get(key, 0) + run.count
    return sum(batches.values()) / max(1, len(batches))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


if __name__ == "__main__":
    address, kind, lengths, seconds, seed, in_flight, model = sys.argv[1:]
    uvloop.install()
    print(json.dumps(asyncio.run(_main(address, kind, lengths, float(seconds), int(seed), int(in_flight), model))))
