"""The other side of the comparison: what the blob store does alone with the same items, in a process of its own.

Each slot, as many as the mesh has in flight, does with one item after another what a careful user of the store would:
compute its SHA-256, put it, get it, compare the SHA-256 of what came back, delete it. By obstore; digests in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
import uvloop
from obstore.store import LocalStore

from bench.blob_load import items, mib_of

EDGE_S = 0.5


def run(folder: Path, sizes_mib: Sequence[int], seconds: float, in_flight: int) -> dict[str, Any]:
    """Runs it with items of these sizes in turn: mib_per_s of items, and cpu_ms_per_mib."""
    arguments = [str(folder), json.dumps(sizes_mib), str(seconds), str(in_flight)]
    command = [sys.executable, "-m", "bench.blob_bare", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


async def _main(folder: str, sizes_mib: list[int], seconds: float, in_flight: int) -> dict[str, Any]:
    store = LocalStore(folder, mkdir=True)
    sent = items(sizes_mib, in_flight)
    numbers = itertools.count()
    began = time.perf_counter()
    begin, end = began + EDGE_S, began + EDGE_S + seconds
    spent: list[tuple[int, float, float]] = []

    async def digest(data) -> bytes:
        return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())

    async def slot() -> None:
        while (started := time.perf_counter()) < end + EDGE_S:
            number = next(numbers)
            key, item = f"items/bare/{number}", sent[number % len(sent)]
            expected = await digest(item)
            await obstore.put_async(store, key, item)
            found = await (await obstore.get_async(store, key)).bytes_async()
            if await digest(found) != expected:
                raise RuntimeError(f"{key} came back with other bytes")
            await obstore.delete_async(store, key)
            spent.append((number, started, time.perf_counter()))

    slots = asyncio.gather(*[slot() for _ in range(in_flight)])
    await asyncio.sleep(begin - time.perf_counter())
    cpu = time.process_time()
    await asyncio.sleep(end - time.perf_counter())
    cpu = time.process_time() - cpu
    await slots
    done_mib = mib_of(spent, begin, end, sizes_mib)
    return {"mib_per_s": done_mib / seconds, "cpu_ms_per_mib": cpu * 1e3 / done_mib}


if __name__ == "__main__":
    folder, sizes, seconds, in_flight = sys.argv[1:]
    uvloop.install()
    print(json.dumps(asyncio.run(_main(folder, json.loads(sizes), float(seconds), int(in_flight)))))
