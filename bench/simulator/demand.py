"""What is asked for: when texts arrive, for which model, how long they are, and how long they are guessed to be."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MEAN_TOKENS = 256
LENGTH_SIGMA = 0.6
"""Of the lengths' logarithm: nine of ten texts have 80 to 580 tokens."""
LENGTHS = (8, 4096)
GUESS_SIGMA = 0.3
"""Of the logarithm of guessed over exact tokens: the gateway divides bytes by four."""
ZIPF_EXPONENT = 1.0
SHIFT_S = 1.0
LAWS = ("even", "zipf", "shifting")


@dataclass(frozen=True)
class Demand:
    """Texts in order of arrival; lists of the same length."""

    arrivals_s: list[float]
    models: list[int]
    tokens: list[int]
    guesses: list[int]
    shares: list[float]
    """Of each model, over the whole time and in tokens."""

    def __len__(self) -> int:
        return len(self.arrivals_s)


def weights(law: str, models: int, seconds: float, seed: int) -> np.ndarray:
    """Each model's share of the texts, one row for each second.

    `even`: equal shares. `zipf`: the k-th model has 1/k of the first's. `shifting`: the same shares, dealt out
    anew at each second.
    """
    rows = int(np.ceil(seconds / SHIFT_S))
    if law == "even":
        return np.full((rows, models), 1 / models)
    skewed = 1 / np.arange(1, models + 1) ** ZIPF_EXPONENT
    skewed /= skewed.sum()
    if law == "zipf":
        return np.tile(skewed, (rows, 1))
    rng = np.random.default_rng([seed, 1])
    return np.stack([rng.permutation(skewed) for _ in range(rows)])


def poisson(law: str, models: int, texts_per_s: float, seconds: float, seed: int) -> Demand:
    """Texts that arrive independently of each other."""
    rng = np.random.default_rng([seed, 2])
    count = rng.poisson(texts_per_s * seconds)
    arrivals_s = np.sort(rng.uniform(0, seconds, count))
    table = np.cumsum(weights(law, models, seconds, seed), axis=1)
    row = np.minimum((arrivals_s / SHIFT_S).astype(int), len(table) - 1)
    chosen = (rng.uniform(size=(count, 1)) * table[row, -1:] > table[row]).sum(axis=1)
    return _with_lengths(arrivals_s, chosen, models, _lengths(rng, count), rng)


def models_in(path: str) -> int:
    """How many models a trace has."""
    return 1 + max(model for _, model, _ in _rows(path))


def _rows(path: str) -> list[tuple[float, int, int]]:
    with Path(path).open(newline="") as file:
        return [(float(row["second"]), int(row["model"]), int(row["tokens"])) for row in csv.DictReader(file)]


def replay(path: str, texts_per_s: float, seconds: float, seed: int) -> Demand:
    """A trace: a CSV file with the columns second, model (a number from 0) and tokens; repeated and stretched
    so that it has `texts_per_s` in the mean."""
    rng = np.random.default_rng([seed, 3])
    rows = sorted(_rows(path))
    start_s = rows[0][0]
    length_s = (rows[-1][0] - start_s) * len(rows) / max(1, len(rows) - 1)
    stretch = len(rows) / length_s / texts_per_s
    repeats = int(np.ceil(seconds / (length_s * stretch)))
    times = np.array([second - start_s for second, _, _ in rows])
    arrivals_s = np.concatenate([(times + length_s * turn) * stretch for turn in range(repeats)])
    kept = arrivals_s < seconds
    chosen = np.tile([model for _, model, _ in rows], repeats)[kept]
    tokens = np.tile([tokens for *_, tokens in rows], repeats)[kept]
    return _with_lengths(arrivals_s[kept], chosen, int(chosen.max()) + 1, tokens, rng)


def _lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    drawn = rng.lognormal(np.log(MEAN_TOKENS) - LENGTH_SIGMA**2 / 2, LENGTH_SIGMA, count)
    return np.clip(drawn.round().astype(int), *LENGTHS)


def _with_lengths(
    arrivals_s: np.ndarray, chosen: np.ndarray, models: int, tokens: np.ndarray, rng: np.random.Generator
) -> Demand:
    guesses = np.maximum(1, (tokens * rng.lognormal(-(GUESS_SIGMA**2) / 2, GUESS_SIGMA, len(tokens))).round())
    shares = np.bincount(chosen, weights=tokens, minlength=models) / max(1, tokens.sum())
    return Demand(arrivals_s.tolist(), chosen.tolist(), tokens.tolist(), guesses.astype(int).tolist(), shares.tolist())
