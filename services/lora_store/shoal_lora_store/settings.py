"""The LoRA store's settings."""

from __future__ import annotations

from pydantic import Field

from shoal_common.settings import ServiceSettings


class LoraStoreSettings(ServiceSettings):
    """What the LoRA store reads from SHOAL_* beside what every service does."""

    blobs: str = Field(min_length=1)
    """Where blobs are kept: a folder's path, or a URL that obstore knows, such as s3://bucket/prefix."""
