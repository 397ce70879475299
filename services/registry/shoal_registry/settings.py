"""The registry's settings."""

from __future__ import annotations

from pydantic import Field

from shoal_common.settings import ServiceSettings


class RegistrySettings(ServiceSettings):
    """What the registry reads from SHOAL_* beside what every service does."""

    replica: str = Field(default="registry-0", min_length=1, max_length=128)
    """This replica's name as the lease's holder: unique among replicas, the same after a restart."""
    catalogue: str = ""
    """A folder of profiles (*.yaml) that stand beside the packaged ones and win by name."""
    first_models: str = Field(default="minilm", validation_alias="SHOAL_REGISTER")
    """Comma-separated catalogue names or paths of profile files that the lease's holder registers."""
    check_sources: bool = False
    """Whether a profile is refused when its package or folder is not right on this machine."""
