"""Prints and stores what `shoal encode` got."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.results import Embedding, Outcome
    from shoal.tensors import Array

SHOWN_ELEMENTS = 4


def as_json(outcome: Outcome, name: str | int | None) -> str:
    """One item as a JSON object on one line; `name` is its id."""
    from shoal.results import ItemError

    head: dict[str, Any] = {"id": name, "index": outcome.index}
    if isinstance(outcome, ItemError):
        body: dict[str, Any] = {
            "error": {"code": outcome.code, "reason": outcome.reason, "message": outcome.message},
        }
    else:
        body = {
            "vector": outcome.vector.tolist(),
            "input_tokens": outcome.input_tokens,
            "used_tokens": outcome.used_tokens,
            "truncated": outcome.truncated,
        }
    return json.dumps(head | body, ensure_ascii=False)


def for_people(embedding: Embedding, name: str | int | None, element_type: str) -> str:
    """One embedding as a short line: its first elements, its length, its tokens."""
    import numpy as np

    vector = embedding.vector
    form = "{:d}" if vector.dtype.kind in "iu" else "{:+.4f}"
    shown = " ".join(form.format(element) for element in vector[:SHOWN_ELEMENTS].tolist())
    more = " …" if len(vector) > SHOWN_ELEMENTS else ""
    size = f"{len(vector)} bytes of bits" if element_type == "binary" else f"{len(vector)} dims"
    norm = "" if element_type == "binary" else f"  norm {np.linalg.norm(vector.astype(np.float64)):.3f}"
    least = "≥" if embedding.input_tokens_lower_bound else ""
    cut = f" (cut to {embedding.used_tokens})" if embedding.truncated else ""
    label = embedding.index if name is None else name
    return f"{label}  [{shown}{more}]  {size}{norm}  {least}{embedding.input_tokens} tokens{cut}"


def store(path: Path, vectors: Array) -> None:
    """Writes a .npy file whole: an older one of that name stays until the new one is complete."""
    import numpy as np

    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as scratch:
        try:
            np.save(scratch, vectors)
            scratch.flush()
            umask = os.umask(0)
            os.umask(umask)
            Path(scratch.name).chmod(0o666 & ~umask)
            Path(scratch.name).replace(path)
        except BaseException:
            Path(scratch.name).unlink(missing_ok=True)
            raise
