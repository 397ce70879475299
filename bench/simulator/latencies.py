"""How long messages take on the way: seconds, as measured on one machine and with a network of 0.2 ms added."""

from __future__ import annotations

import random

HOP_S = (0.0002, 0.0005)
"""Between two machines, one way; the broker or router's work included. A pull's round trip is 0.4 to 1 ms."""
LOCAL_HOP_S = 0.0001
"""Between a worker and its sidecar, one way."""
TOKENIZE_S = 0.0003
"""To read and tokenize what was admitted: the first text."""
TOKENIZE_TEXT_S = 0.00001
"""Each further one, on a few threads."""
ROUTED_S = 2 * sum(HOP_S) / 2 + TOKENIZE_S
"""What a routed text spends beside queue and device: there, tokenized, and back."""
QUEUED_S = 2 * sum(HOP_S) / 2 + LOCAL_HOP_S
"""What a queued one spends beside queue, pull and device: to the broker, out of the sidecar, and back."""


def hop_s(rng: random.Random) -> float:
    """One way between two machines."""
    low, high = HOP_S
    return low + (high - low) * rng.random()
