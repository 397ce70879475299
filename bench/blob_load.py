"""Large items through the mesh: one Infer stream with several in flight, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import grpc
import numpy as np
import uvloop

from shoal.v1 import inference_pb2 as pb

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
EDGE_S = 1.0
MIB = 1024 * 1024


def run(address: str, model: str, mib: int, seconds: float, in_flight: int) -> dict[str, Any]:
    """Runs it: mib_per_s of items, p50_ms of a request, cpu_ms_per_mib of the generator, loaded_s and loaded_mib."""
    arguments = [address, model, str(mib), str(seconds), str(in_flight)]
    command = [sys.executable, "-m", "bench.blob_load", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def items(mib: int, count: int) -> list[bytes]:
    """Serialized items of so many MiB of media each, none like another."""
    rng = np.random.default_rng(mib)
    return [
        pb.Item(media=pb.Media(mime_type="image/png", data=rng.bytes(mib * MIB))).SerializeToString()
        for _ in range(count)
    ]


async def _main(address: str, model: str, mib: int, seconds: float, in_flight: int) -> dict[str, Any]:
    requests = []
    for number, item in enumerate(items(mib, in_flight)):
        encode = pb.EncodeRequest(model=model, items=[pb.Item.FromString(item)])
        requests.append(pb.InferRequest(request_id=str(number), encode=encode).SerializeToString())
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        call = channel.stream_stream("/shoal.v1.InferenceService/Infer")()
        began = time.perf_counter()
        begin, end = began + EDGE_S, began + EDGE_S + seconds
        started: dict[str, float] = {}
        spent: list[tuple[float, float]] = []
        writes: asyncio.Queue[int] = asyncio.Queue()

        async def write() -> None:
            while (number := await writes.get()) >= 0:
                started[str(number)] = time.perf_counter()
                await call.write(requests[number])
            await call.done_writing()

        writing = asyncio.create_task(write())
        for number in range(in_flight):
            writes.put_nowait(number)
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
            spent.append((started[answer.request_id], now))
            if now < end + EDGE_S:
                writes.put_nowait(int(answer.request_id))
            else:
                waiting -= 1
        writes.put_nowait(-1)
        await writing
        loaded_s = time.perf_counter() - began
    done = sum(max(0.0, min(stop, end) - max(start, begin)) / (stop - start) for start, stop in spent)
    within = sorted((stop - start) * 1e3 for start, stop in spent if begin <= stop <= end)
    return {
        "mib_per_s": done * mib / seconds,
        "p50_ms": within[len(within) // 2] if within else None,
        "cpu_ms_per_mib": (cpu_s["end"] - cpu_s["begin"]) * 1e3 / (done * mib),
        "loaded_s": loaded_s,
        "loaded_mib": len(spent) * mib,
    }


if __name__ == "__main__":
    address, model, mib, seconds, in_flight = sys.argv[1:]
    uvloop.install()
    print(json.dumps(asyncio.run(_main(address, model, int(mib), float(seconds), int(in_flight)))))
