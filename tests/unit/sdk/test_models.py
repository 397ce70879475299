"""What the mesh serves."""

from __future__ import annotations

import asyncio

import grpc
import pytest

import shoal
from shoal.v1 import models_pb2
from tests.unit.sdk.fake_mesh import BREAK, MINILM, FakeMesh, status


async def test_models(fake: FakeMesh) -> None:
    async with shoal.aio.connect(fake.target) as mesh:
        (model,) = await mesh.models()
        assert await mesh.model("default") == model
    assert model == shoal.Model(
        name="minilm",
        revision="sha256:0123456789abcdef",
        state="ready",
        error="",
        encode_outputs=("dense",),
        dimensions=384,
        default_max_tokens=256,
        max_tokens=512,
        normalize=True,
        aliases=("default",),
    )


async def test_watch_gives_the_whole_list_at_each_change(fake: FakeMesh) -> None:
    other = models_pb2.Model(name="another", state=models_pb2.MODEL_STATE_LOADING)
    fake.changes = [
        models_pb2.WatchModelsResponse(models=[other]),
        models_pb2.WatchModelsResponse(removed=[MINILM.name]),
    ]
    async with shoal.aio.connect(fake.target) as mesh:
        watch = mesh.watch_models()
        seen = [[model.name for model in await anext(watch)] for _ in range(3)]
        await watch.aclose()
    assert seen == [["minilm"], ["another", "minilm"], ["another"]]


async def test_watch_goes_on_after_a_break(fake: FakeMesh) -> None:
    fake.faults.append(BREAK)
    async with shoal.aio.connect(fake.target) as mesh:
        watch = mesh.watch_models()
        seen = [[model.name for model in await anext(watch)] for _ in range(2)]
        await watch.aclose()
    assert seen == [["minilm"], ["minilm"]]


async def test_watch_ends_with_what_does_not_pass(fake: FakeMesh) -> None:
    fake.faults.append(status(grpc.StatusCode.PERMISSION_DENIED, "no"))
    async with shoal.aio.connect(fake.target) as mesh:
        with pytest.raises(shoal.PermissionDenied):
            async for _ in mesh.watch_models():
                pass
    async with shoal.aio.connect("127.0.0.1:1") as mesh:
        with pytest.raises(shoal.Unavailable, match="no mesh answers"):
            await asyncio.wait_for(anext(mesh.watch_models()), 5)
