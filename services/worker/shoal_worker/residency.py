"""Which models this device holds: what is wanted, how each stands, what to load and what to let go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from shoal.scheduler.v1 import scheduler_pb2
from shoal_common.registry_view import RegisteredModel, RegistryView

ABSENT = scheduler_pb2.RESIDENCY_ABSENT
LOADING = scheduler_pb2.RESIDENCY_LOADING
READY = scheduler_pb2.RESIDENCY_READY
FAILED = scheduler_pb2.RESIDENCY_FAILED
RETRY_S = 30.0
"""A model that failed is tried again after so long, or when the registry changes."""
DRAINED_S = 3.0
"""A retired model is let go once its lane was empty for so long: gateways publish from older snapshots for a moment."""


@dataclass(slots=True)
class ModelHere:
    """A model as this worker holds it."""

    model: RegisteredModel
    state: scheduler_pb2.Residency = ABSENT
    error: str = ""
    progress: str = ""
    memory_bytes: int = 0
    retry_at_s: float = 0.0
    wanted: bool = True
    retired_s: float | None = None
    """Since when the registry has it no more; None while it has."""


def wanted(view: RegistryView, pool: str, device: str, named: Iterable[str], plan: frozenset[str] | None) -> set[str]:
    """Digests to hold: those named in the settings and those planned; without a plan, all of the pool.

    A model that the device's runtime may not run is none of them.
    """
    here = (model for model in view.models.values() if model.lane.pool == pool)
    ours = {model.digest for model in here if model.profile.runs_on(device)}
    by_name = {view.aliases.get(name, name) for name in named}
    always = {model.digest for model in view.models.values() if model.name in by_name}
    return ours & (always | (ours if plan is None else plan))


class Residency:
    """State of every model by digest. Times are seconds on the loop's monotonic clock."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._models: dict[str, ModelHere] = {}

    def __iter__(self) -> Iterator[ModelHere]:
        return iter(list(self._models.values()))

    def get(self, profile_digest: str) -> ModelHere | None:
        """A model that is held, asked for, or on its way out."""
        return self._models.get(profile_digest)

    def is_ready(self, profile_digest: str) -> bool:
        """Whether units of a model can be run."""
        here = self._models.get(profile_digest)
        return here is not None and here.state == READY

    @property
    def used_bytes(self) -> int:
        """Memory of the models that are loaded."""
        return sum(here.memory_bytes for here in self._models.values() if here.state == READY)

    def lanes(self) -> set[str]:
        """Tokens of the lanes of every model that is held, asked for, or on its way out."""
        return {here.model.lane.token for here in self._models.values()}

    def lanes_to_pull(self) -> dict[str, str]:
        """Digests by lane token of the models that are ready, retired ones included: their queue is finished."""
        return {here.model.lane.token: digest for digest, here in self._models.items() if here.state == READY}

    def want(self, registered: Mapping[str, RegisteredModel], digests: set[str], now_s: float) -> None:
        """Says what the registry holds and what of it is wanted here."""
        for digest, here in self._models.items():
            here.wanted = digest in digests
            if digest in registered:
                here.retired_s = None
            elif here.retired_s is None:
                here.retired_s = now_s
        for digest in digests - self._models.keys():
            self._models[digest] = ModelHere(registered[digest])

    def retry_failed(self) -> None:
        """What failed may be tried again at once."""
        for here in self._models.values():
            here.retry_at_s = 0.0

    def to_load(self, now_s: float) -> list[RegisteredModel]:
        """The models to load now; they count as loading."""
        due = [
            here
            for here in self._models.values()
            if here.wanted and (here.state == ABSENT or (here.state == FAILED and now_s >= here.retry_at_s))
        ]
        for here in due:
            here.state, here.error = LOADING, ""
        return [here.model for here in due]

    def to_unload(self, in_use: set[str], empty_s: Callable[[str, float], float]) -> list[str]:
        """Digests of retired models that no unit in hand and none in their lane needs; they are forgotten.

        `empty_s(token, after_s)` tells for how long after that moment a lane was seen to be empty.
        """
        gone = [
            digest
            for digest, here in self._models.items()
            if here.retired_s is not None
            and digest not in in_use
            and (here.state != READY or empty_s(here.model.lane.token, here.retired_s) >= DRAINED_S)
        ]
        for digest in gone:
            del self._models[digest]
        return gone

    def make_room(self, needed_bytes: int, in_use: set[str]) -> list[str]:
        """Digests to let go, largest first, so that a model of that size fits; they are forgotten.

        A model that is no longer wanted is kept as long as there is room: it goes on serving. Where the
        device's memory is not known, none is kept. A retired one goes by itself, once its lane is empty.
        """
        spare = sorted(
            (
                here
                for digest, here in self._models.items()
                if not here.wanted and here.retired_s is None and digest not in in_use
            ),
            key=lambda here: -here.memory_bytes,
        )
        gone = []
        for here in spare:
            if self.memory_bytes and self.used_bytes + needed_bytes <= self.memory_bytes:
                break
            gone.append(here.model.digest)
            del self._models[here.model.digest]
        return gone

    def failed(self, profile_digest: str, error: str, now_s: float) -> None:
        """A model cannot be loaded."""
        if here := self._models.get(profile_digest):
            here.state, here.error, here.progress = FAILED, error, ""
            here.retry_at_s = now_s + RETRY_S

    def progressed(self, profile_digest: str, progress: str) -> None:
        """A model is being loaded."""
        if here := self._models.get(profile_digest):
            here.state, here.error, here.progress = LOADING, "", progress

    def ready(self, profile_digest: str, memory_bytes: int) -> None:
        """A model computes."""
        if here := self._models.get(profile_digest):
            here.state, here.error, here.progress = READY, "", ""
            here.memory_bytes = memory_bytes

    def lost(self, profile_digest: str) -> None:
        """The sidecar says that it does not have a model after all: it is loaded again."""
        if here := self._models.get(profile_digest):
            here.state = ABSENT

    def all_lost(self) -> None:
        """The sidecar is gone: whatever it held is to be loaded again."""
        for here in self._models.values():
            here.state, here.error, here.progress, here.memory_bytes = ABSENT, "", "", 0
