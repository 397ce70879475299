"""The scheduler's settings."""

from __future__ import annotations

from pydantic import Field

from shoal_common.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """What the scheduler reads from SHOAL_* beside what every service does."""

    registry: str = Field(min_length=1)
    """The registry's address."""
    replica: str = Field(default="scheduler-0", min_length=1, max_length=128)
    """This replica's name as the lease's holder: unique among replicas, the same after a restart."""
