"""The words that options of an encode call may be."""

from __future__ import annotations

from typing import Literal

Type = Literal["f32", "f16", "bf16", "int8", "binary"]
Role = Literal["query", "document"]
Truncation = Literal["end", "error"]
Priority = Literal["interactive", "bulk"]
