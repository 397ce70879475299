"""ModelService: what can be called, from the registry's snapshot and the scheduler's lane states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc

from shoal.v1 import models_pb2, models_pb2_grpc
from shoal_gateway import refusals
from shoal_gateway.auth import Auth
from shoal_gateway.checks import check_model_name
from shoal_gateway.known_models import KnownModels
from shoal_gateway.lane_states import LaneStates
from shoal_gateway.model_messages import model_message, model_messages

NAME = "shoal.v1.ModelService"


class ModelService(models_pb2_grpc.ModelServiceServicer):
    """Answers from memory; watchers hear of a change as soon as this gateway does."""

    def __init__(self, models: KnownModels, lane_states: LaneStates, auth: Auth) -> None:
        self._known = models
        self._lane_states = lane_states
        self._auth = auth
        self._changed = asyncio.Event()
        self._stopping = False

    def stop(self) -> None:
        """Ends the watches."""
        self._stopping = True
        self.wake()

    async def ListModels(
        self, request: models_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> models_pb2.ListModelsResponse:
        self._auth.caller(context)
        return models_pb2.ListModelsResponse(models=self._models().values())

    async def GetModel(
        self, request: models_pb2.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> models_pb2.GetModelResponse:
        self._auth.caller(context)
        check_model_name(request.model)
        model = self._known.resolve(request.model)
        return models_pb2.GetModelResponse(model=model_message(model, self._known.aliases(), self._lane_states))

    async def WatchModels(
        self, request: models_pb2.WatchModelsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[models_pb2.WatchModelsResponse]:
        self._auth.caller(context)
        changed, told = self._changed, self._models()
        yield models_pb2.WatchModelsResponse(snapshot=True, models=told.values())
        while True:
            await changed.wait()
            if self._stopping:
                raise refusals.stopping()
            self._auth.caller(context)  # It may have been revoked meanwhile.
            changed, now = self._changed, self._models()
            news = models_pb2.WatchModelsResponse(
                models=[model for name, model in now.items() if model != told.get(name)],
                removed=[name for name in told if name not in now],
            )
            told = now
            if news.models or news.removed:
                yield news

    def _models(self) -> dict[str, models_pb2.Model]:
        return model_messages(self._known.by_name(), self._known.aliases(), self._lane_states)

    def wake(self, _: Iterable[str] = ()) -> None:
        """Has all watchers look for changes; who watches from now on waits for the next."""
        self._changed.set()
        self._changed = asyncio.Event()
