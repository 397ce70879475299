"""Least squares over a batch's four features, with forgetting: what refits a cost curve."""

from __future__ import annotations

from collections.abc import Sequence

Four = tuple[float, float, float, float]

RIDGE = 0.5
"""Weight of the seed's shape, in batches: it decides only what the batches leave open, for instance when all of
them have one size."""
TINY = 1e-9
"""Of the seed's shape for a feature that no batch had."""
SWEEPS = 2
"""Passes over the coefficients a batch. The sums change by a hundredth a batch, so that few passes follow them."""
MOST_GAIN = 20.0
"""The seed may be wrong by at most this factor."""
LEAST_GAIN: Four = (1 / MOST_GAIN, 1 / 200, 0.0, 0.0)
"""The same downwards. A profile without a tuned block for GPUs overstates a token there some fifty times."""


class Moments:
    """Sums over batches, and the gains that minimise Σ weight·(gains·features - target)² + ridge.

    A feature is what its term of the reference curve predicts, over a batch's predicted time, so that all four are
    shares of about one whatever the device; a target is actual over predicted. A gain is the factor between the
    reference's coefficient and the device's. The ridge draws the gains to `shape` times the factor that fits best
    as a whole, each by its feature's mean square, so that no unit and no size of batch matters.
    """

    __slots__ = ("_cross", "_shape", "_targets", "_weight")

    def __init__(self, shape: Four) -> None:
        self._shape = shape
        self._cross = [0.0] * 10
        """Sums of products of features: 00 01 02 03 11 12 13 22 23 33."""
        self._targets = [0.0] * 4
        """Sums of each feature times the target."""
        self._weight = 0.0

    @property
    def sums(self) -> tuple[float, ...]:
        """All 15 sums, for `restore`: the products, the targets, the weight of all batches."""
        return (*self._cross, *self._targets, self._weight)

    def restore(self, sums: Sequence[float]) -> None:
        """Takes over the sums of a former life."""
        self._cross, self._targets, self._weight = list(sums[:10]), list(sums[10:14]), sums[14]

    def add(self, z0: float, z1: float, z2: float, z3: float, target: float, keep: float) -> None:
        """Adds a batch's features and target; those before keep so much of their weight."""
        m00, m01, m02, m03, m11, m12, m13, m22, m23, m33 = self._cross
        self._cross = [
            keep * m00 + z0 * z0,
            keep * m01 + z0 * z1,
            keep * m02 + z0 * z2,
            keep * m03 + z0 * z3,
            keep * m11 + z1 * z1,
            keep * m12 + z1 * z2,
            keep * m13 + z1 * z3,
            keep * m22 + z2 * z2,
            keep * m23 + z2 * z3,
            keep * m33 + z3 * z3,
        ]
        self._weight = keep * self._weight + 1.0
        t0, t1, t2, t3 = self._targets
        self._targets = [
            keep * t0 + z0 * target,
            keep * t1 + z1 * target,
            keep * t2 + z2 * target,
            keep * t3 + z3 * target,
        ]

    def whole(self) -> float:
        """The one factor of the seed that fits best, within its bounds; needs a batch."""
        s0, s1, s2, s3 = self._shape
        m00, m01, m02, m03, m11, m12, m13, m22, m23, m33 = self._cross
        t0, t1, t2, t3 = self._targets
        seed = (
            s0 * (s0 * m00 + 2 * (s1 * m01 + s2 * m02 + s3 * m03))
            + s1 * (s1 * m11 + 2 * (s2 * m12 + s3 * m13))
            + s2 * (s2 * m22 + 2 * s3 * m23)
            + s3 * s3 * m33
        )
        factor = (s0 * t0 + s1 * t1 + s2 * t2 + s3 * t3) / seed
        return min(max(factor, 1 / MOST_GAIN), MOST_GAIN)

    def solve(self, gains: Four) -> Four:
        """The gains after this batch, from those before: some steps of coordinate descent, each within its bounds."""
        g0, g1, g2, g3 = gains
        m00, m01, m02, m03, m11, m12, m13, m22, m23, m33 = self._cross
        t0, t1, t2, t3 = self._targets
        ridge, whole = RIDGE / self._weight, self.whole()
        s0, s1, s2, s3 = self._shape
        r0, r1, r2, r3 = ridge * m00 + TINY, ridge * m11 + TINY, ridge * m22 + TINY, ridge * m33 + TINY
        t0, t1, t2, t3 = t0 + r0 * whole * s0, t1 + r1 * whole * s1, t2 + r2 * whole * s2, t3 + r3 * whole * s3
        m00, m11, m22, m33 = m00 + r0, m11 + r1, m22 + r2, m33 + r3
        # First all by one factor: most of the news is that the whole device is faster or slower.
        square = (
            g0 * (g0 * m00 + 2 * (g1 * m01 + g2 * m02 + g3 * m03))
            + g1 * (g1 * m11 + 2 * (g2 * m12 + g3 * m13))
            + g2 * (g2 * m22 + 2 * g3 * m23)
            + g3 * g3 * m33
        )
        factor = (g0 * t0 + g1 * t1 + g2 * t2 + g3 * t3) / square
        g0, g1, g2, g3 = factor * g0, factor * g1, factor * g2, factor * g3
        least0, least1, least2, least3 = LEAST_GAIN
        for _ in range(SWEEPS):
            g0 = min(max((t0 - m01 * g1 - m02 * g2 - m03 * g3) / m00, least0), MOST_GAIN)
            g1 = min(max((t1 - m01 * g0 - m12 * g2 - m13 * g3) / m11, least1), MOST_GAIN)
            g2 = min(max((t2 - m02 * g0 - m12 * g1 - m23 * g3) / m22, least2), MOST_GAIN)
            g3 = min(max((t3 - m03 * g0 - m13 * g1 - m23 * g2) / m33, least3), MOST_GAIN)
        return g0, g1, g2, g3
