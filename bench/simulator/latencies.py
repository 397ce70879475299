"""How long messages are on their way: as measured on one machine, with a network's 0.1 to 0.4 ms between two."""

from __future__ import annotations

import random

HOP_S = (0.0002, 0.0005)
"""Between two machines, one way, with what the broker does: a pull's round trip is 0.4 to 1 ms."""
LOCAL_HOP_S = 0.0001
"""Between a worker and its sidecar, one way."""
TOKENIZE_S = 0.0003
"""To read and tokenize what was admitted: the first text,"""
TOKENIZE_TEXT_S = 0.00001
"""and each further one, on a few threads."""
MEAN_HOP_S = sum(HOP_S) / 2
ROUTED_S = 2 * MEAN_HOP_S + TOKENIZE_S
"""What a routed text spends beside queue and device: there, tokenized, and back."""
QUEUED_S = 2 * MEAN_HOP_S + LOCAL_HOP_S
"""What a queued one spends beside queue, pull and device: to the broker, out of the sidecar, and back."""


def hop_s(rng: random.Random) -> float:
    """One way between two machines."""
    low, high = HOP_S
    return low + (high - low) * rng.random()
