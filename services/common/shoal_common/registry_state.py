"""The registry's bucket: how its keys are named, and the read that any process can do by itself."""

from __future__ import annotations

import base64

from shoal.registry.v1 import registry_pb2
from shoal_common.bucket import Bucket, Snapshot
from shoal_common.nats_session import Session

BUCKET = "shoal-registry"
MODEL = "model"
ALIAS = "alias"


def bucket(session: Session, replicas: int = 1) -> Bucket:
    """The registry's bucket."""
    return Bucket(session, BUCKET, replicas=replicas)


def key(kind: str, name: str) -> str:
    """The key of a model or an alias: names may hold what subjects may not."""
    return f"{kind}.{base64.b32encode(name.encode()).decode().rstrip('=').lower()}"


def decode(snapshot: Snapshot) -> registry_pb2.State:
    """The state that a snapshot of the bucket holds, sorted by name."""
    state = registry_pb2.State()
    for name, entry in snapshot.entries.items():
        if name.startswith(f"{MODEL}."):
            state.models.append(registry_pb2.Model.FromString(entry.value))
        elif name.startswith(f"{ALIAS}."):
            state.aliases.append(registry_pb2.Alias.FromString(entry.value))
    state.models.sort(key=lambda model: model.name)
    state.aliases.sort(key=lambda alias: alias.name)
    return state
