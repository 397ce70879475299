"""RegistryService: translates between the wire and the registry's rules and state."""

from __future__ import annotations

from collections.abc import AsyncIterator

from grpc.aio import ServicerContext

from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal_common import errors, logs
from shoal_registry.models import Models
from shoal_registry.replica import Replica
from shoal_registry.state import State

log = logs.get("registry")


class RegistryHandlers(registry_pb2_grpc.RegistryServiceServicer):
    """Reads are answered by every replica from memory, writes by the one that holds the lease."""

    def __init__(self, replica: Replica, models: Models) -> None:
        self._replica = replica
        self._models = models

    async def RegisterModel(
        self, request: registry_pb2.RegisterModelRequest, context: ServicerContext
    ) -> registry_pb2.RegisterModelResponse:
        model, changed = await self._models.register(request.profile)
        return registry_pb2.RegisterModelResponse(model=model, changed=changed)

    async def DeleteModel(
        self, request: registry_pb2.DeleteModelRequest, context: ServicerContext
    ) -> registry_pb2.DeleteModelResponse:
        await self._models.delete(request.name)
        return registry_pb2.DeleteModelResponse()

    async def SetAlias(
        self, request: registry_pb2.SetAliasRequest, context: ServicerContext
    ) -> registry_pb2.SetAliasResponse:
        return registry_pb2.SetAliasResponse(alias=await self._models.set_alias(request.alias))

    async def DeleteAlias(
        self, request: registry_pb2.DeleteAliasRequest, context: ServicerContext
    ) -> registry_pb2.DeleteAliasResponse:
        await self._models.delete_alias(request.name)
        return registry_pb2.DeleteAliasResponse()

    async def GetModel(
        self, request: registry_pb2.GetModelRequest, context: ServicerContext
    ) -> registry_pb2.GetModelResponse:
        state = self._loaded()
        model = state.resolve(request.name)
        if model is None:
            raise errors.not_found("model", request.name, state.names())
        return registry_pb2.GetModelResponse(model=model)

    async def ListModels(
        self, request: registry_pb2.ListModelsRequest, context: ServicerContext
    ) -> registry_pb2.ListModelsResponse:
        everything = self._loaded().snapshot().snapshot
        return registry_pb2.ListModelsResponse(models=everything.models, aliases=everything.aliases)

    async def Watch(
        self, request: registry_pb2.WatchRequest, context: ServicerContext
    ) -> AsyncIterator[registry_pb2.WatchResponse]:
        state = self._loaded()
        with self._replica.watchers.joined() as watcher:
            log.debug("watched", watcher=request.watcher)
            yield state.snapshot()
            async for event in watcher.events():
                yield event

    def _loaded(self) -> State:
        if not self._replica.loaded.is_set():
            raise errors.unavailable("the registry has not read its state yet", 0.5)
        return self._replica.state
