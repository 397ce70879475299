"""A first real request to a new mesh: proof for people that it answers."""

from __future__ import annotations

import time

import shoal.aio

TEXT = "Fish in a shoal move as one."


async def first_request(address: str, model: str, token: str) -> str:
    """Sends one text as any client would, with a token if there is one; what came back, in a line."""
    async with shoal.aio.connect(address, token=token or None) as mesh:
        started = time.perf_counter()
        vector = await mesh.encode(TEXT, model=model)
        took_ms = 1_000 * (time.perf_counter() - started)
    head = " ".join(f"{value:+.4f}" for value in vector[:4])
    return f"encode({TEXT!r}) gave [{head} …], {len(vector)} dims, in {took_ms:.0f} ms"
