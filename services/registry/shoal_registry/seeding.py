"""Registers the settings' models at start, without undoing what an operator registered under their names."""

from __future__ import annotations

from collections.abc import Mapping

from shoal_common import errors, logs
from shoal_common.profile import parse_profile
from shoal_registry.models import Models
from shoal_registry.replica import Replica

log = logs.get("seeding")


def is_due(registered: str | None, seeded: str | None, offered: str) -> bool:
    """Whether a digest may take the name: nothing stands there, or what was seeded before, or the same."""
    return registered in (None, seeded, offered)


async def seed(texts: Mapping[str, str], models: Models, replica: Replica) -> None:
    """Registers what is due of the profiles, by model name; one that is refused is logged and left out.

    Raises:
        CallError: UNAVAILABLE; the rest is not registered.
    """
    for name, text in texts.items():
        model = replica.state.models.get(name)
        digest = parse_profile(text).digest()
        if not is_due(model.profile_digest if model else None, replica.state.seeded(name), digest):
            continue
        try:
            await models.register(text)
        except errors.CallError as error:
            if error.reason not in ("INVALID_PROFILE", "INVALID_WEIGHTS", "INVALID_FIELD"):
                raise
            log.error("a model of SHOAL_REGISTER was refused", model=name, error=error.message)
            continue
        if replica.state.seeded(name) != digest:
            await replica.put_seed(name, digest)
            log.info("model registered at start", model=name, digest=digest)
