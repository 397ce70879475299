"""The other side of the comparison: what the blob store does alone with the same items, in a process of its own.

Each slot, as many as the mesh has in flight, repeats for one item what a careful user of the store would do: compute
its SHA-256, put it, get it, compare the SHA-256 of what came back, delete it. By obstore; digests in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import obstore
import uvloop
from obstore.store import LocalStore

from bench.blob_load import items

EDGE_S = 0.5


def run(folder: Path, mib: int, seconds: float, in_flight: int) -> dict[str, Any]:
    """Runs it: mib_per_s of items, and cpu_ms_per_mib."""
    arguments = [str(folder), str(mib), str(seconds), str(in_flight)]
    command = [sys.executable, "-m", "bench.blob_bare", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


async def _main(folder: str, mib: int, seconds: float, in_flight: int) -> dict[str, Any]:
    store = LocalStore(folder, mkdir=True)
    sent = items(mib, in_flight)
    began = time.perf_counter()
    begin, end = began + EDGE_S, began + EDGE_S + seconds
    spent: list[tuple[float, float]] = []

    async def digest(data) -> bytes:
        return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())

    async def slot(number: int, item: bytes) -> None:
        turn = 0
        while (started := time.perf_counter()) < end + EDGE_S:
            key, turn = f"items/bare/{number}-{turn}", turn + 1
            expected = await digest(item)
            await obstore.put_async(store, key, item)
            found = await (await obstore.get_async(store, key)).bytes_async()
            if await digest(found) != expected:
                raise RuntimeError(f"{key} came back with other bytes")
            await obstore.delete_async(store, key)
            spent.append((started, time.perf_counter()))

    slots = asyncio.gather(*[slot(number, item) for number, item in enumerate(sent)])
    await asyncio.sleep(begin - time.perf_counter())
    cpu = time.process_time()
    await asyncio.sleep(end - time.perf_counter())
    cpu = time.process_time() - cpu
    await slots
    # An item counts by the share of its time that lies in the window.
    done = sum(max(0.0, min(stop, end) - max(start, begin)) / (stop - start) for start, stop in spent)
    return {"mib_per_s": done * mib / seconds, "cpu_ms_per_mib": cpu * 1e3 / (done * mib)}


if __name__ == "__main__":
    folder, mib, seconds, in_flight = sys.argv[1:]
    uvloop.install()
    print(json.dumps(asyncio.run(_main(folder, int(mib), float(seconds), int(in_flight)))))
