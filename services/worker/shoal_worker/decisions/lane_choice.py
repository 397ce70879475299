"""Which lane to drain next: one whose work has waited for long goes first, then the one that holds the most."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from shoal_worker.decisions.lane_guess import Guess

LOOKED_AT = 0.5
"""Share of the lanes, drawn at random, among which the best is taken: siblings that know the same would else run
after the same lane."""
NEWS_S = 0.0015
"""What happens to a lane is known so much later: a pull's round trip, and a note of it."""
CHOOSERS = 2.0
"""Drains within that time for which `LOOKED_AT` is right: where there are more, fewer lanes are looked at."""
WELL_INFORMED = 0.5
"""Where siblings tell less than this share of their drains, what a lane holds is not known at all."""


class News(NamedTuple):
    """What is known of siblings."""

    drains_per_s: float
    """Theirs, all together."""
    told: float
    """The share of them that is told."""


def best(lanes: Mapping[str, Guess], news: News, due_s: float, now_s: float, rng: random.Random) -> str | None:
    """The lane to drain; None when none is believed to hold anything.

    A full batch wastes the least of a batch's own cost: so a lane waits until it holds the most of all, or until
    its oldest message has waited for `due_s`; then it goes first, however little it holds. The more workers choose
    at the same time and by the same news, the more is left to chance.
    """
    known = [lane for lane, guess in lanes.items() if guess.fill(now_s) >= 1]
    if len(known) < 2:
        return known[0] if known else None

    def rank(lane: str) -> tuple[bool, float]:
        age_s = lanes[lane].age_s(now_s)
        return age_s > due_s, age_s if age_s > due_s else lanes[lane].fill(now_s)

    looks = len(known) * LOOKED_AT / max(1.0, news.drains_per_s * NEWS_S / CHOOSERS)
    if looks >= 1 and news.told >= WELL_INFORMED:
        return max(rng.sample(known, round(looks)), key=rank)
    mean = sum(lanes[lane].rate for lane in known) / len(known) or 1.0
    return rng.choices(known, [_weight(lanes[lane], mean, due_s, now_s) for lane in known])[0]


def _weight(guess: Guess, mean: float, due_s: float, now_s: float) -> float:
    """A lane's weight in a draw: its rate. One that is due, or was never drained, has at least the mean: a rare
    message must not wait for busy lanes for ever."""
    if guess.rate and guess.age_s(now_s) <= due_s:
        return guess.rate
    return max(guess.rate, mean)
