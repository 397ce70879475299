"""What a batch of one model costs on this device: predicted, and corrected by what batches really took."""

from __future__ import annotations

from shoal_common.profile import Cost

LEARNING_RATE = 0.1
"""Weight of one batch: after about ten, a machine twice as slow is known as such."""
BATCH_RATIO = 2.0
"""One batch counts as off by at most this factor: a stall of the machine is no news of the model."""
SCALE_BOUND = 20.0
"""The seed may be wrong by at most this factor either way."""
MEAN_UNITS = 64
"""Units over which the mean cost of a unit is taken."""


class CostModel:
    """ms = scale · (batch_ms + token_us·tokens/1e3 + squared_token_ns·Σlength²/1e6 + item_us·items/1e3).

    The profile's tuned block gives the coefficients; the scale starts at 1 and follows the ratio of
    actual to predicted in its logarithm, so that half and double weigh the same.
    """

    def __init__(self, seed: Cost) -> None:
        self._seed = seed
        self._units = 0
        self.scale = 1.0
        self.unit_ms = self.predict(1, 64, 64 * 64)
        """Mean predicted cost of a unit; until one was seen, that of a text of 64 tokens."""

    def predict(self, items: int, tokens: int, squared_tokens: float) -> float:
        """Milliseconds that a unit adds to a batch."""
        seed = self._seed
        return self.scale * (
            seed.token_us * tokens / 1e3 + seed.squared_token_ns * squared_tokens / 1e6 + seed.item_us * items / 1e3
        )

    @property
    def batch_ms(self) -> float:
        """Milliseconds that a batch costs before its first token."""
        return self.scale * self._seed.batch_ms

    def seen(self, cost_ms: float) -> None:
        """Counts a unit into the mean."""
        self._units = min(self._units + 1, MEAN_UNITS)
        self.unit_ms += (cost_ms - self.unit_ms) / self._units

    def learn(self, predicted_ms: float, actual_ms: float) -> None:
        """Corrects the scale by a batch that took `actual_ms` of the device."""
        if predicted_ms <= 0 or actual_ms <= 0:
            return
        ratio = min(max(actual_ms / predicted_ms, 1 / BATCH_RATIO), BATCH_RATIO)
        before = self.scale
        self.scale = min(max(before * ratio**LEARNING_RATE, 1 / SCALE_BOUND), SCALE_BOUND)
        self.unit_ms *= self.scale / before
