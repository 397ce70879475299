"""Which lane to drain next: one whose work has waited for long goes first, then the one that holds the most."""

from __future__ import annotations

import random
from collections.abc import Mapping

from shoal_worker.decisions.lane_guess import Guess

LOOKED_AT = 0.5
"""Share of the lanes, drawn at random, among which the best is taken: siblings that know the same would else run
after the same lane."""
NEWS_S = 0.004
"""What happens to a lane is known so much later: a pull's round trip, and a note of it. A lane that is drained more
often than that is never known as it is."""
FULLER = 1.25
"""A worker leaves such a lane for one where drains find so much more,"""
MOVES = 0.2
"""with this probability each time: of all that think so, a few are enough."""


def best(lanes: Mapping[str, Guess], home: str | None, due_s: float, now_s: float, rng: random.Random) -> str | None:
    """The lane to drain; None when none is believed to hold anything. `home` is the one that this worker drained last.

    A full batch wastes the least of a batch's own cost: so a lane waits until it holds the most of all, or until
    its oldest message has waited for `due_s`; then it goes first, however little it holds.

    Where so many workers share a lane that none knows what it holds, they stay with their lanes: whoever chooses
    anew each time, by old news or by chance, leaves some lane short of workers for a while. They move, a few at a
    time, to where batches are larger.
    """
    at_home = lanes.get(home) if home is not None else None
    if home is not None and at_home is not None and at_home.waited_s < NEWS_S:
        return _stay_or_move(lanes, home, at_home, due_s, now_s, rng)
    known = [lane for lane, guess in lanes.items() if guess.fill(now_s) >= 1]
    if len(known) > 1:
        known = rng.sample(known, max(1, round(len(known) * LOOKED_AT)))
    if not known:
        return None

    def rank(lane: str) -> tuple[bool, float]:
        age_s = lanes[lane].age_s(now_s)
        return age_s > due_s, age_s if age_s > due_s else lanes[lane].fill(now_s)

    return max(known, key=rank)


def _stay_or_move(
    lanes: Mapping[str, Guess], home: str, at_home: Guess, due_s: float, now_s: float, rng: random.Random
) -> str:
    other = rng.choice(list(lanes))
    if lanes[other].age_s(now_s) > due_s and lanes[other].fill(now_s) >= 1:
        return other
    if rng.random() < MOVES:
        fuller = [lane for lane, guess in lanes.items() if guess.found > at_home.found * FULLER]
        if fuller:
            return rng.choices(fuller, [lanes[lane].found for lane in fuller])[0]
    return home
