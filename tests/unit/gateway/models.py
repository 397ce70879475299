"""Registered models for tests of the pure parts."""

from __future__ import annotations

from collections.abc import Iterable

from shoal_common import errors
from shoal_common.lanes import Lane
from shoal_common.profile import parse_profile
from shoal_common.registry_view import RegisteredModel
from tests.unit.gateway.fake_mesh import PROFILE


def registered(profile_text: str = PROFILE) -> RegisteredModel:
    """A model as the registry's view holds it."""
    profile = parse_profile(profile_text)
    digest = profile.digest()
    return RegisteredModel(profile.name, digest, profile, profile.canonical_json(), Lane(profile.pool, digest))


class Models:
    """Names of models and nothing else."""

    def __init__(self, models: Iterable[RegisteredModel]) -> None:
        self._models = {model.name: model for model in models}

    def resolve(self, name: str) -> RegisteredModel:
        if name not in self._models:
            raise errors.not_found("model", name, self._models)
        return self._models[name]
