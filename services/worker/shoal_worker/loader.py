"""Finds a model's files on this machine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from shoal_common import weights
from shoal_common.profile import Profile


@dataclass(frozen=True)
class Found:
    """A model's checked files."""

    folder: Path
    weights_bytes: int


async def find(profile: Profile) -> Found:
    """Locates and checks a model's files, in a thread.

    Raises:
        WeightsError: they are missing, or not what the profile says.
    """
    return await asyncio.to_thread(_find, profile)


def _find(profile: Profile) -> Found:
    folder = weights.verified(profile)
    return Found(folder, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
