"""How a figure is reported: medians with their spread, and one JSON object as the last line."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def say(text: str) -> None:
    """Tells what is going on, beside the result."""
    print(text, file=sys.stderr, flush=True)


def result(figure: str, value: float, bar: str, **raw: Any) -> None:
    """Prints the figure under its own key, its bar, and the raw numbers of both sides."""
    print(json.dumps(_rounded({figure: value, "bar": bar, **raw})))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value
