"""Large items through the mesh: one Infer stream with several in flight, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
import numpy as np
import uvloop

from shoal.v1 import inference_pb2 as pb

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
EDGE_S = 1.0
MIB = 1024 * 1024


def run(address: str, model: str, sizes_mib: Sequence[int], seconds: float, in_flight: int) -> dict[str, Any]:
    """Runs it with items of these sizes in turn.

    Returns mib_per_s of items, p50_ms of a request, cpu_ms_per_mib of the generator, loaded_s and loaded_mib.
    """
    arguments = [address, model, json.dumps(sizes_mib), str(seconds), str(in_flight)]
    command = [sys.executable, "-m", "bench.blob_load", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def items(sizes_mib: Sequence[int], count: int) -> list[bytes]:
    """Serialized items of media of these sizes in turn, at least so many, none like another."""
    rng = np.random.default_rng(len(sizes_mib))
    sizes = list(sizes_mib) * -(-count // len(sizes_mib))
    return [
        pb.Item(media=pb.Media(mime_type="image/png", data=rng.bytes(mib * MIB))).SerializeToString() for mib in sizes
    ]


def mib_of(spent: Iterable[tuple[int, float, float]], begin: float, end: float, sizes_mib: Sequence[int]) -> float:
    """MiB done within a window, of items by number, start and end: each counts by the share of its time in there."""
    return sum(
        sizes_mib[number % len(sizes_mib)] * max(0.0, min(stop, end) - max(start, begin)) / (stop - start)
        for number, start, stop in spent
    )


async def _main(address: str, model: str, sizes_mib: list[int], seconds: float, in_flight: int) -> dict[str, Any]:
    requests = []
    for number, item in enumerate(items(sizes_mib, 2 * in_flight)):
        encode = pb.EncodeRequest(model=model, items=[pb.Item.FromString(item)])
        requests.append(pb.InferRequest(request_id=str(number), encode=encode).SerializeToString())
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        call = channel.stream_stream("/shoal.v1.InferenceService/Infer")()
        began = time.perf_counter()
        begin, end = began + EDGE_S, began + EDGE_S + seconds
        started: dict[int, float] = {}
        spent: list[tuple[int, float, float]] = []
        writes: asyncio.Queue[int] = asyncio.Queue()

        async def write() -> None:
            while (number := await writes.get()) >= 0:
                started[number] = time.perf_counter()
                await call.write(requests[number])
            await call.done_writing()

        writing = asyncio.create_task(write())
        idle = deque(range(len(requests)))
        for _ in range(in_flight):
            writes.put_nowait(idle.popleft())
        cpu_s = {"begin": 0.0, "end": 0.0}
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + EDGE_S, lambda: cpu_s.update(begin=time.process_time()))
        loop.call_at(loop.time() + EDGE_S + seconds, lambda: cpu_s.update(end=time.process_time()))
        waiting = in_flight
        while waiting:
            raw = await call.read()
            if not isinstance(raw, bytes):
                raise RuntimeError("the stream ended before its answers")
            answer = pb.InferResponse.FromString(raw)
            if answer.WhichOneof("response") != "encode" or answer.encode.results[0].status.code:
                raise RuntimeError(f"an item was not served: {answer}"[:2000])
            now = time.perf_counter()
            number = int(answer.request_id)
            spent.append((number, started[number], now))
            if now < end + EDGE_S:
                idle.append(number)
                writes.put_nowait(idle.popleft())
            else:
                waiting -= 1
        writes.put_nowait(-1)
        await writing
        loaded_s = time.perf_counter() - began
    done_mib = mib_of(spent, begin, end, sizes_mib)
    within = sorted((stop - start) * 1e3 for _, start, stop in spent if begin <= stop <= end)
    return {
        "mib_per_s": done_mib / seconds,
        "p50_ms": within[len(within) // 2] if within else None,
        "cpu_ms_per_mib": (cpu_s["end"] - cpu_s["begin"]) * 1e3 / done_mib,
        "loaded_s": loaded_s,
        "loaded_mib": sum(sizes_mib[number % len(sizes_mib)] for number, _, _ in spent),
    }


if __name__ == "__main__":
    address, model, sizes, seconds, in_flight = sys.argv[1:]
    uvloop.install()
    print(json.dumps(asyncio.run(_main(address, model, json.loads(sizes), float(seconds), int(in_flight)))))
