"""What workers save of their cost models: one JSON value a worker, strictly read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

from shoal_common.profile import Strict
from shoal_worker.decisions.cost import CostState
from shoal_worker.decisions.curve import MOST_LEVEL, CurveState
from shoal_worker.decisions.refit import MOST_GAIN
from shoal_worker.settings import WorkerSettings

VERSION = 1
MODELS = 64
"""At most so many are kept, those served last: a value stays below 128 KiB."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Gain = Annotated[float, Field(ge=0, le=MOST_GAIN)]
Sum = Annotated[float, Field(ge=0, le=1e30)]


class _Form(Strict):
    model_config = ConfigDict(strict=True)


class SavedCurve(_Form):
    """A `CurveState`."""

    gains: tuple[Gain, Gain, Gain, Gain]
    sums: Annotated[tuple[Sum, ...], Field(min_length=15, max_length=15)]
    level: float = Field(ge=1 / MOST_LEVEL, le=MOST_LEVEL)
    spread: float = Field(ge=0, le=100)
    batches: int = Field(ge=0)

    @classmethod
    def of(cls, state: CurveState) -> SavedCurve:
        """The form of a state."""
        return cls(gains=state.gains, sums=state.sums, level=state.level, spread=state.spread, batches=state.batches)

    def state(self) -> CurveState:
        """The state that it is the form of."""
        return CurveState(self.gains, self.sums, self.level, self.spread, self.batches)


class SavedCost(_Form):
    """A `CostState`."""

    alone: SavedCurve
    beside: SavedCurve | None

    @classmethod
    def of(cls, state: CostState) -> SavedCost:
        """The form of a state."""
        return cls(alone=SavedCurve.of(state.alone), beside=SavedCurve.of(state.beside) if state.beside else None)

    def state(self) -> CostState:
        """The state that it is the form of."""
        return CostState(self.alone.state(), self.beside.state() if self.beside else None)


class SavedCosts(_Form):
    """What one worker knows, by profile digest, and on what device it learnt it."""

    version: Literal[1]
    machine: str
    kind: str
    """For instance cpu or cuda."""
    streams: int
    threads: int
    models: dict[Digest, SavedCost] = Field(max_length=MODELS)
    """Those served last come last."""

    @classmethod
    def of(cls, settings: WorkerSettings, models: Mapping[str, CostState]) -> SavedCosts:
        """What a worker saves: of `models` the last ones, without those that learnt from a profile out of all range."""
        forms: dict[str, SavedCost] = {}
        for digest, state in list(models.items())[-MODELS:]:
            with contextlib.suppress(ValidationError):
                forms[digest] = SavedCost.of(state)
        return cls(
            version=VERSION,
            machine=settings.machine,
            kind=settings.device.partition(":")[0],
            streams=settings.streams_or_auto,
            threads=settings.threads_or_auto,
            models=forms,
        )

    @classmethod
    def parse(cls, value: bytes) -> SavedCosts | None:
        """Reads a value; None when it is no such JSON, another version's, or out of any range."""
        try:
            return cls.model_validate_json(value)
        except ValidationError:
            return None

    def fits(self, settings: WorkerSettings) -> bool:
        """Whether it was learnt on a device like this worker's."""
        return (self.kind, self.streams, self.threads) == (
            settings.device.partition(":")[0],
            settings.streams_or_auto,
            settings.threads_or_auto,
        ) and all((model.beside is None) == (self.streams == 1) for model in self.models.values())

    def states(self) -> dict[str, CostState]:
        """The states by profile digest."""
        return {digest: model.state() for digest, model in self.models.items()}


def known(settings: WorkerSettings, own: SavedCosts | None, others: Iterable[SavedCosts]) -> dict[str, CostState]:
    """What a worker begins with: what it knew itself, else what a worker on a like device knows of the same profile,
    first one of its machine."""
    alike = [saved for saved in others if saved.fits(settings)]
    alike.sort(key=lambda saved: saved.machine == settings.machine)
    states: dict[str, CostState] = {}
    for saved in [*alike, *([own] if own and own.fits(settings) else [])]:
        states.update(saved.states())
    return states
