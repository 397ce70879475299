"""Seeded texts: English words, so that lengths in tokens can be asked for."""

from __future__ import annotations

import random

WORDS = (
    "the of and to in a is that for it was on are as with they be at one have this from or had by hot but some what "
    "there we can out other were all your when up use word how said an each she which do their time if will way about "
    "many then them would write like so these her long make thing see him two has look more day could go come did my "
    "sound no most number who over know water than call first people may down side been now find head stand own page "
    "should country found answer school grow study still learn plant cover food sun four between state keep eye never"
).split()


def text(rng: random.Random, words: int) -> str:
    """A text of so many words; each is one token of MiniLM."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def mixed(seed: int, count: int, most_tokens: int = 512) -> list[str]:
    """Texts of 1 to `most_tokens` tokens beside the two special ones, short ones more often."""
    rng = random.Random(seed)
    return [text(rng, max(1, min(most_tokens - 2, int(rng.lognormvariate(3.2, 1.3))))) for _ in range(count)]
