"""What a token that a gateway estimated costs in full batches here, by model: wrong estimates included."""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 15 / 16
"""Of the sums after another batch: a mean over some sixteen batches, by their tokens, so that full ones decide."""


@dataclass(slots=True)
class _Sums:
    ms: float = 0.0
    tokens: float = 0.0


class TokenCosts:
    """Running means over finished batches."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}

    def ran(self, profile_digest: str, predicted_ms: float, estimated_tokens: int) -> None:
        """A batch of a model is done, whose units cost so much in full batches."""
        sums = self._sums.setdefault(profile_digest, _Sums())
        sums.ms = sums.ms * KEPT + predicted_ms
        sums.tokens = sums.tokens * KEPT + estimated_tokens

    def ms_per_token(self, profile_digest: str) -> float:
        """Milliseconds; 0 before a batch was done."""
        sums = self._sums.get(profile_digest)
        return sums.ms / sums.tokens if sums and sums.tokens else 0.0
