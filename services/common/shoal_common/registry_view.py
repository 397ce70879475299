"""What a service knows of the registry: a snapshot that stays when the registry goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from pydantic import ValidationError

from shoal.registry.v1 import registry_pb2, registry_pb2_grpc
from shoal_common import errors, grpc_server, logs, registry_state
from shoal_common.lanes import Lane
from shoal_common.nats_session import ApiError, BrokerTimeout, Session
from shoal_common.profile import Profile

log = logs.get("registry-view")
RETRY_S = 0.25


@dataclass(frozen=True)
class RegisteredModel:
    """A model as the registry holds it."""

    name: str
    digest: str
    profile: Profile
    profile_json: str
    lane: Lane

    @classmethod
    def read(cls, model: registry_pb2.Model) -> RegisteredModel:
        """From the registry's message."""
        return cls(
            name=model.name,
            digest=model.profile_digest,
            profile=Profile.model_validate_json(model.profile_json),
            profile_json=model.profile_json,
            lane=Lane(model.lane.pool, model.profile_digest),
        )


class RegistryView:
    """Models and aliases by name; `follow` keeps them fresh."""

    def __init__(self, session: Session, address: str, watcher: str) -> None:
        self._session = session
        self._address = address
        self._watcher = watcher
        self._hooks: list[Callable[[], None]] = []
        self.models: dict[str, RegisteredModel] = {}
        self.aliases: dict[str, str] = {}
        self.ready = asyncio.Event()

    def on_change(self, hook: Callable[[], None]) -> None:
        """Calls `hook` after each change, the first snapshot included."""
        self._hooks.append(hook)

    def resolve(self, name: str) -> RegisteredModel:
        """The model of a name or an alias.

        Raises:
            CallError: NOT_FOUND, with near names.
        """
        model = self.models.get(self.aliases.get(name, name))
        if model is None:
            raise errors.not_found("model", name, [*self.models, *self.aliases])
        return model

    async def follow(self) -> None:
        """Watches the registry for ever; reads the bucket itself while it has no snapshot and no registry."""
        while True:
            try:
                async with grpc_server.channel(self._address) as channel:
                    await self._watch(registry_pb2_grpc.RegistryServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                log.debug("registry is away", error=error.details())
            if not self.ready.is_set():
                await self._read_bucket()
            await asyncio.sleep(RETRY_S)

    async def _watch(self, stub: registry_pb2_grpc.RegistryServiceStub) -> None:
        async for event in stub.Watch(registry_pb2.WatchRequest(watcher=self._watcher)):
            self._apply(event)

    async def _read_bucket(self) -> None:
        try:
            snapshot = await registry_state.bucket(self._session).read()
        except (ApiError, BrokerTimeout) as error:
            log.debug("the registry's bucket is not there yet", error=str(error))
            return
        self._apply(registry_pb2.WatchResponse(snapshot=registry_state.decode(snapshot)))

    def _apply(self, event: registry_pb2.WatchResponse) -> None:
        kind = event.WhichOneof("event")
        if kind == "snapshot":
            self.models = {}
            for model in event.snapshot.models:
                self._set(model)
            self.aliases = {alias.name: alias.model for alias in event.snapshot.aliases}
            self.ready.set()
        elif kind == "model":
            self._set(event.model)
        elif kind == "model_removed":
            self.models.pop(event.model_removed, None)
        elif kind == "alias":
            self.aliases[event.alias.name] = event.alias.model
        elif kind == "alias_removed":
            self.aliases.pop(event.alias_removed, None)
        for hook in self._hooks:
            hook()

    def _set(self, model: registry_pb2.Model) -> None:
        """Takes a model in; one that this process is too old to read is as if it were not there."""
        try:
            self.models[model.name] = RegisteredModel.read(model)
        except ValidationError as error:
            self.models.pop(model.name, None)
            log.error("a registered profile cannot be read here", model=model.name, error=str(error))
