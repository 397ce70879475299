"""One curve of device time: predicts a batch, and follows what batches really take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal_common.profile import Cost
from shoal_worker.decisions.refit import LEAST_GAIN, MOST_GAIN, Four, Moments

LEVEL_RATE = 0.05
"""Weight of one batch in the level: it follows in some twenty batches, where the coefficients need a hundred."""
MOST_LEVEL = 4.0
SPREAD_RATE = 0.1
BOUND_SPREADS = 3.0
"""A batch counts as off by at most so many times the usual: a stall of the machine is no news of the model. A
machine that stays slower widens what is usual, and is followed."""
LEAST_BOUND = 0.2
FAR = 0.5
"""In the logarithm of actual over predicted: a factor of 1.65."""
LEAST_OVER = math.exp(-FAR)
FORGETTING = 0.99
"""Weight of a batch after the next one: some hundred batches are remembered."""
FORGETTING_FAR = 0.9
"""The same after a batch that is far off: after a few of them the machine is another, and what was is forgotten."""
FIRST_SPREAD = 1.0
"""Before the first batch the seed may be wrong by anything."""
LEAST_BATCH_MS = 1e-3
LEAST_TOKEN_US = 0.01
"""Nothing is for nothing, whatever the seed says."""
FLOOR_BATCH_TOKENS = 16
FLOOR_ITEM_TOKENS = 2
FLOOR_SQUARED_SHARE = 0.1 / 256
"""What a term may grow from where the seed has none: a batch like 16 tokens, an item like 2, and attention a tenth
of a text of 256 tokens."""


@dataclass(frozen=True)
class CurveState:
    """What a curve knows, to begin with it another time."""

    gains: Four
    sums: tuple[float, ...]
    level: float
    spread: float
    batches: int


class Curve:
    """ms = batch_ms + token_ms·tokens + squared_ms·Σlength² + item_ms·items.

    The coefficients come from a recursive least-squares fit of relative errors (`Moments`); above them a level
    follows the last few batches. Both see a batch's error cut to what is usual, as Huber's weights do.
    """

    __slots__ = (
        "_gains",
        "_level",
        "_moments",
        "_reference",
        "_shape",
        "_spread",
        "batch_ms",
        "batches",
        "item_ms",
        "squared_ms",
        "token_ms",
    )

    def __init__(self, seed: Cost) -> None:
        batch_ms, token_ms = max(seed.batch_ms, LEAST_BATCH_MS), max(seed.token_us, LEAST_TOKEN_US) / 1e3
        squared_ms, item_ms = seed.squared_token_ns / 1e6, seed.item_us / 1e3
        r0 = max(batch_ms, FLOOR_BATCH_TOKENS * token_ms)
        r2 = max(squared_ms, FLOOR_SQUARED_SHARE * token_ms)
        r3 = max(item_ms, FLOOR_ITEM_TOKENS * token_ms)
        self._reference: Four = (r0, token_ms, r2, r3)
        self._shape: Four = (batch_ms / r0, 1.0, squared_ms / r2, item_ms / r3)
        self._gains = self._shape
        self._moments = Moments(self._shape)
        self._level = 1.0
        self._spread = FIRST_SPREAD
        self.batches = 0
        """Batches that it has learnt from."""
        self.batch_ms, self.token_ms, self.squared_ms, self.item_ms = batch_ms, token_ms, squared_ms, item_ms

    def predict(self, items: int, tokens: int, squared_tokens: float) -> float:
        """Milliseconds of a batch."""
        return self.batch_ms + self.token_ms * tokens + self.squared_ms * squared_tokens + self.item_ms * items

    def learn(self, items: int, tokens: int, squared_tokens: float, actual_ms: float) -> None:
        """Takes in what a batch took: a positive, finite number of milliseconds."""
        predicted_ms = self.predict(items, tokens, squared_tokens)
        error = math.log(actual_ms / predicted_ms)
        bound = max(LEAST_BOUND, BOUND_SPREADS * self._spread)
        usual = min(max(error, -bound), bound)
        believed_ms = predicted_ms * math.exp(usual)
        self.batches += 1
        self._spread += max(SPREAD_RATE, 1 / (self.batches + 1)) * (abs(usual) - self._spread)
        is_far = abs(error) > FAR
        # Over what was predicted the fit has no bias; but a batch far above that would outweigh all others.
        over_ms = max(believed_ms, predicted_ms * LEAST_OVER) if is_far else predicted_ms
        r0, r1, r2, r3 = self._reference
        moments = self._moments
        moments.add(
            r0 / over_ms,
            r1 * tokens / over_ms,
            r2 * squared_tokens / over_ms,
            r3 * items / over_ms,
            believed_ms / over_ms,
            FORGETTING_FAR if is_far else FORGETTING,
        )
        self._level = min(max(self._level * math.exp(LEVEL_RATE * usual), 1 / MOST_LEVEL), MOST_LEVEL)
        self._gains = moments.solve(self._gains)
        self._set()

    def begin_at(self, factor: float) -> None:
        """Before the first batch: the seed times a factor, within its bounds."""
        factor = min(max(factor, 1 / MOST_GAIN), MOST_GAIN)
        s0, s1, s2, s3 = self._shape
        self._gains = (factor * s0, factor * s1, factor * s2, factor * s3)
        self._set()

    def whole(self) -> float:
        """The seed's factor as a whole; needs a batch."""
        return self._level * self._moments.whole()

    def state(self) -> CurveState:
        """What it knows."""
        return CurveState(self._gains, self._moments.sums, self._level, self._spread, self.batches)

    def restore(self, state: CurveState) -> None:
        """Goes on from what a curve with the same seed knew."""
        self._gains, self._level, self._spread = state.gains, state.level, state.spread
        self.batches = state.batches
        self._moments.restore(state.sums)
        self._set()

    def _set(self) -> None:
        g0, g1, g2, g3 = self._gains
        r0, r1, r2, r3 = self._reference
        level, most, (least0, least1, _, _) = self._level, MOST_GAIN, LEAST_GAIN
        self.batch_ms = r0 * min(max(level * g0, least0), most)
        self.token_ms = r1 * min(max(level * g1, least1), most)
        self.squared_ms = r2 * min(level * g2, most)
        self.item_ms = r3 * min(level * g3, most)
