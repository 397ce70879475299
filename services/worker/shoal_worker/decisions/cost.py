"""What a batch of one model costs on this device: predicted, and corrected by what batches really took."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal_common import limits
from shoal_common.profile import Cost
from shoal_worker.decisions.curve import Curve, CurveState

MEAN_UNITS = 64
"""Units over which the mean cost of a unit is taken."""
MEAN_BATCHES = 64
"""Batches over which the mean error is taken."""
SUPPOSED_TOKENS = 64
"""Until a unit was seen, units are taken for one text of so many tokens."""


@dataclass(frozen=True)
class CostState:
    """What a model's cost model knows, to begin with it another time."""

    alone: CurveState
    beside: CurveState | None
    """None with one stream."""

    @property
    def batches(self) -> int:
        """Batches behind it."""
        return self.alone.batches + (self.beside.batches if self.beside else 0)


class CostModel:
    """Costs are milliseconds of the whole device: a batch's time on it, times its share of it.

    A runtime runs a batch either alone, on all of a CPU's cores, or beside others on a share of them: two curves,
    which is what *class of batch* means here. Interactive and bulk batches have one physics and share both. A batch
    beside others has 1/streams of the device, so that its cost says how much less other work gets done; that is
    also what compares workers, since with work waiting every batch has others beside it. With one stream there is
    one curve.

    `predict`, `batch_ms` and `unit_ms` are of the class in which batches run while work waits, for there they
    decide something.
    """

    def __init__(self, seed: Cost, streams: int = 1) -> None:
        self._alone = Curve(seed)
        self._beside = Curve(seed) if streams > 1 else self._alone
        self._units = 0
        self._batches = 0
        self.unit_ms = self.predict(1, SUPPOSED_TOKENS, SUPPOSED_TOKENS**2)
        """Mean predicted cost of a unit; until one was seen, that of a text of 64 tokens."""
        self.mean_error = 0.0
        """Mean of |predicted - actual| / actual over the last batches, each predicted before it was learnt from."""

    @property
    def batch_ms(self) -> float:
        """Milliseconds that a batch costs before its first token."""
        return self._beside.batch_ms

    @property
    def batches(self) -> int:
        """Batches that it has learnt from, in former lives too."""
        return self._alone.batches + (self._beside.batches if self._beside is not self._alone else 0)

    def predict(self, items: int, tokens: int, squared_tokens: float) -> float:
        """Milliseconds that a unit adds to a batch."""
        curve = self._beside
        return curve.token_ms * tokens + curve.squared_ms * squared_tokens + curve.item_ms * items

    def predict_alone(self, items: int, tokens: int, squared_tokens: float) -> float:
        """Milliseconds of a whole batch that has the device to itself."""
        return self._alone.predict(items, tokens, squared_tokens)

    def seen(self, cost_ms: float) -> None:
        """Counts a unit into the mean."""
        self._units = min(self._units + 1, MEAN_UNITS)
        self.unit_ms += (cost_ms - self.unit_ms) / self._units

    def learn(self, items: int, tokens: int, squared_tokens: float, actual_ms: float, *, alone: bool = True) -> None:
        """Corrects a class's curve by a batch that cost `actual_ms`; one that never ran (0) teaches nothing."""
        curve = self._alone if alone else self._beside
        predicted_ms = curve.predict(items, tokens, squared_tokens)
        if not (0 < actual_ms < math.inf and predicted_ms < math.inf):
            return
        self._batches = min(self._batches + 1, MEAN_BATCHES)
        self.mean_error += (abs(predicted_ms - actual_ms) / actual_ms - self.mean_error) / self._batches
        units_ms = self.predict(items, tokens, squared_tokens)
        curve.learn(items, tokens, squared_tokens, actual_ms)
        if not self._beside.batches:  # Nothing is known of the other class but the machine's speed.
            self._beside.begin_at(curve.whole())
        if units_ms > 0:
            self.unit_ms *= self.predict(items, tokens, squared_tokens) / units_ms

    def state(self) -> CostState:
        """What it knows."""
        return CostState(self._alone.state(), None if self._beside is self._alone else self._beside.state())

    def restore(self, state: CostState) -> None:
        """Goes on from what a cost model with the same seed and streams knew."""
        before_ms = self.predict(1, SUPPOSED_TOKENS, SUPPOSED_TOKENS**2)
        self._alone.restore(state.alone)
        if state.beside is not None:
            self._beside.restore(state.beside)
        self.unit_ms *= self.predict(1, SUPPOSED_TOKENS, SUPPOSED_TOKENS**2) / before_ms

    def samples(self) -> tuple[float, ...]:
        """What each class predicts for a short text and for a full batch: tells whether a saved state is outdated."""
        return tuple(
            curve.predict(items, items * SUPPOSED_TOKENS, items * SUPPOSED_TOKENS**2)
            for curve in (self._alone, self._beside)
            for items in (1, limits.UNIT_ITEMS)
        )
