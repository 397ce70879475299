"""The models that a mesh is started with: named or given as files, and waited for until they answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import grpc

from shoal.v1 import models_pb2, models_pb2_grpc
from shoal_common.profile import Profile, parse_profile
from shoal_registry import catalogue
from shoal_supervisor import log_files
from shoal_supervisor.errors import CannotStart

Models: TypeAlias = dict[str, models_pb2.Model]
Metadata: TypeAlias = tuple[tuple[str, str], ...]
RETRY_S = 0.1
# A registry whose predecessor was killed waits for the lease before it registers anything.
REGISTERED_WITHIN_S = 60.0


def profiles_of(models: Iterable[str]) -> dict[str, Profile]:
    """Profiles by name, of models given as catalogue names or as paths of profile files.

    Raises:
        CannotStart: a name is not in the catalogue, or a file is no profile.
    """
    try:
        texts = catalogue.chosen(",".join(models), os.environ.get("SHOAL_CATALOGUE", ""))
    except catalogue.CatalogueError as error:
        raise CannotStart(str(error).replace("SHOAL_REGISTER", "--model")) from None
    return {name: parse_profile(text) for name, text in texts.items()}


async def wait_ready(address: str, names: frozenset[str], registry_log: Path, token: str = "") -> None:
    """Returns when the mesh at `address` answers for every one of the models; `token` is what it is called with.

    Raises:
        CannotStart: one of them was refused by the registry, or cannot be loaded.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub = models_pb2_grpc.ModelServiceStub(channel)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        try:
            async with asyncio.timeout(REGISTERED_WITHIN_S):
                await _until(stub, metadata, lambda models: names <= models.keys())
        except TimeoutError:
            words = log_files.last_words(registry_log)
            raise CannotStart(
                f"not all of {', '.join(sorted(names))} could be registered: {words}; see {registry_log}"
            ) from None
        await _until(stub, metadata, lambda models: _all_ready(models, names))


async def _until(stub: models_pb2_grpc.ModelServiceStub, metadata: Metadata, holds: Callable[[Models], bool]) -> None:
    """Returns when it holds for the models as the gateway knows them."""
    models: Models = {}
    while True:
        try:
            request = models_pb2.WatchModelsRequest()
            async for news in stub.WatchModels(request, wait_for_ready=True, metadata=metadata):
                if news.snapshot:
                    models.clear()
                models.update((model.name, model) for model in news.models)
                for name in news.removed:
                    models.pop(name, None)
                if holds(models):
                    return
        except grpc.aio.AioRpcError:
            pass  # The gateway ended; its successor is on its way.
        await asyncio.sleep(RETRY_S)


def _all_ready(models: Models, names: frozenset[str]) -> bool:
    for name in names & models.keys():
        if models[name].state == models_pb2.MODEL_STATE_FAILED:
            raise CannotStart(f"model {name} cannot be loaded: {models[name].error}")
    return all(name in models and models[name].state == models_pb2.MODEL_STATE_READY for name in names)
