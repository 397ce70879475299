"""The rules of models and aliases: what may be registered, named and removed, and in which order it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import TypeAdapter, ValidationError

from shoal.registry.v1 import registry_pb2
from shoal_common import errors, weights
from shoal_common.lanes import Lane
from shoal_common.profile import ModelName, Profile, ProfileError, parse_profile
from shoal_registry.replica import Replica

_name = TypeAdapter(ModelName)
PrepareLane = Callable[[str], Awaitable[None]]
"""Makes a lane's consumers, given its token; raises CallError when the broker is away."""


class Models:
    """Writes of desired state. Changes come one at a time, so that a rule over two keys holds."""

    def __init__(self, replica: Replica, prepare_lane: PrepareLane, *, check_sources: bool) -> None:
        self._replica = replica
        self._prepare_lane = prepare_lane
        self._check_sources = check_sources
        self._lock = asyncio.Lock()

    async def register(self, text: str) -> tuple[registry_pb2.Model, bool]:
        """Registers a profile given as YAML or JSON; the model, and whether anything changed.

        Raises:
            CallError: INVALID_ARGUMENT naming each bad field, or UNAVAILABLE.
        """
        try:
            profile = await asyncio.to_thread(parse_profile, text)
        except ProfileError as error:
            raise errors.invalid_fields(_in_profile(error.violations), "INVALID_PROFILE") from None
        model = _model(profile)
        async with self._lock:
            self._replica.check_writable()
            state = self._replica.state
            if alias := state.aliases.get(profile.name):
                raise errors.invalid_field("profile.name", f"{profile.name!r} is an alias of {alias.model!r}")
            if state.models.get(profile.name) == model:
                return model, False
            if self._check_sources:
                await _check(profile)
            # The lane stands before anybody hears of it.
            await self._prepare_lane(model.lane.token)
            await self._replica.put_model(model)
        return model, True

    async def delete(self, name: str) -> None:
        """Removes a model; its lanes are cleared by the queue's keeper.

        Raises:
            CallError: NOT_FOUND, FAILED_PRECONDITION while aliases stand for it, or UNAVAILABLE.
        """
        async with self._lock:
            self._replica.check_writable()
            state = self._replica.state
            if alias := state.aliases.get(name):
                raise errors.invalid_field("name", f"{name!r} is an alias of {alias.model!r}; name the model")
            if name not in state.models:
                raise errors.not_found("model", name, state.models)
            if aliases := state.aliases_of(name):
                raise errors.failed_precondition(
                    "MODEL_HAS_ALIASES", f"{', '.join(aliases)} stand for {name!r}: point them elsewhere first"
                )
            await self._replica.remove_model(name)

    async def set_alias(self, alias: registry_pb2.Alias) -> registry_pb2.Alias:
        """Points an alias at a model.

        Raises:
            CallError: INVALID_ARGUMENT, NOT_FOUND or UNAVAILABLE.
        """
        try:
            _name.validate_python(alias.name)
        except ValidationError as error:
            raise errors.invalid_field("alias.name", error.errors()[0]["msg"]) from None
        async with self._lock:
            self._replica.check_writable()
            state = self._replica.state
            if alias.name in state.models:
                raise errors.invalid_field("alias.name", f"{alias.name!r} is a model's own name")
            if alias.model not in state.models:
                raise errors.not_found("model", alias.model, state.models)
            if state.aliases.get(alias.name) != alias:
                await self._replica.put_alias(alias)
        return alias

    async def delete_alias(self, name: str) -> None:
        """Removes an alias.

        Raises:
            CallError: NOT_FOUND or UNAVAILABLE.
        """
        async with self._lock:
            self._replica.check_writable()
            if name not in self._replica.state.aliases:
                raise errors.not_found("alias", name, self._replica.state.aliases)
            await self._replica.remove_alias(name)


def _model(profile: Profile) -> registry_pb2.Model:
    lane = Lane(profile.pool, profile.digest())
    return registry_pb2.Model(
        name=profile.name,
        profile_digest=lane.profile_digest,
        profile_json=profile.canonical_json(),
        lane=registry_pb2.Lane(token=lane.token, pool=lane.pool, profile_digest=lane.profile_digest, shard=lane.shard),
    )


async def _check(profile: Profile) -> None:
    if profile.source.hub is not None:
        return  # A worker fetches it: a call must not wait for gigabytes.
    try:
        await asyncio.to_thread(weights.verified, profile)
    except weights.WeightsError as error:
        raise errors.invalid_fields(_in_profile(error.violations), "INVALID_WEIGHTS") from None


def _in_profile(violations: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Paths as they are in the request, whose field `profile` holds the whole."""
    return [(path if path == "profile" else f"profile.{path}", what) for path, what in violations]
