"""Which lanes nobody serves any more, and since when: they are cleared after a grace."""

from __future__ import annotations

from collections.abc import Set

GRACE_S = 10.0
"""For workers that still finish what they pulled, and gateways that still publish from an older snapshot."""


class RetiredLanes:
    """Remembers when each lane was first seen to be there without being wanted."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def due(self, wanted: Set[str], present: Set[str], now_s: float) -> list[str]:
        """Tokens of lanes that are to be cleared now, of those present in the broker."""
        retired = present - wanted
        self._since_s = {token: self._since_s.get(token, now_s) for token in retired}
        return sorted(token for token, since_s in self._since_s.items() if now_s - since_s >= GRACE_S)
