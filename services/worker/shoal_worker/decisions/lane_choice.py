"""Which lane to drain next: one whose work has waited for long goes first, then the one that holds the most."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from shoal_worker.decisions.lane_guess import Guess

LOOKED_AT = 0.5
"""Share of the lanes, drawn at random, among which the best is taken: siblings that know the same would else run
after the same lane."""

Lane = TypeVar("Lane")


def best(lanes: Sequence[tuple[Lane, Guess]], due_s: float, now_s: float, rng: random.Random) -> Lane | None:
    """The lane to drain; None when none is believed to hold anything.

    A full batch wastes the least of a batch's own cost, so that a lane waits until it holds the most of all, or
    until its oldest message has waited for `due_s`: then it goes first, however little it holds.
    """
    known = [(lane, guess) for lane, guess in lanes if guess.fill(now_s) >= 1]
    if len(known) > 1:
        known = rng.sample(known, max(1, round(len(known) * LOOKED_AT)))
    if not known:
        return None

    def rank(pair: tuple[Lane, Guess]) -> tuple[bool, float]:
        age_s = pair[1].age_s(now_s)
        return age_s > due_s, age_s if age_s > due_s else pair[1].fill(now_s)

    return max(known, key=rank)[0]
