"""The models that may be called: the registry's snapshot, once there is one."""

from __future__ import annotations

from collections.abc import Mapping

from shoal_common import errors
from shoal_common.registry_view import RegisteredModel, RegistryView

RETRY_S = 0.5


class KnownModels:
    """Reads the registry's view; without a snapshot no model is unknown, they are only not known yet."""

    def __init__(self, registry: RegistryView) -> None:
        self._registry = registry

    def resolve(self, name: str) -> RegisteredModel:
        """The model of a name or an alias.

        Raises:
            CallError: NOT_FOUND with near names; UNAVAILABLE before the first snapshot.
        """
        self._check_ready()
        return self._registry.resolve(name)

    def by_name(self) -> Mapping[str, RegisteredModel]:
        """Every model; raises UNAVAILABLE before the first snapshot."""
        self._check_ready()
        return self._registry.models

    def aliases(self) -> Mapping[str, str]:
        """Models' names by alias."""
        return self._registry.aliases

    def _check_ready(self) -> None:
        if not self._registry.ready.is_set():
            raise errors.unavailable(
                "this gateway has not heard from the registry yet; try again", RETRY_S, "REGISTRY_UNAVAILABLE"
            )
