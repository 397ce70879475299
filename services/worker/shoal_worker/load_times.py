"""How long loading a model takes on this device: measured where it was done, else guessed from the others."""

from __future__ import annotations

from collections.abc import Iterable

from shoal_worker.residency import LOADING, READY, ModelHere

UNKNOWN_MS = 5_000.0
"""Before anything was loaded here: small models take less, what a runtime must import first takes more."""
LEAST_SHARE = 0.1
"""Of a load that takes longer than it should, so much is taken to be left."""


class LoadTimes:
    """Follows the states of models. Times are seconds on the loop's monotonic clock."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}
        self._took_ms: dict[str, float] = {}

    def follow(self, models: Iterable[ModelHere], now_s: float) -> None:
        """The states as they are now; to be called at every change."""
        loading = set()
        for here in models:
            digest = here.model.digest
            if here.state == LOADING:
                loading.add(digest)
                self._began_s.setdefault(digest, now_s)
            elif here.state == READY and digest in self._began_s:
                self._took_ms[digest] = (now_s - self._began_s[digest]) * 1e3
        self._began_s = {digest: began_s for digest, began_s in self._began_s.items() if digest in loading}

    def left_ms(self, profile_digest: str, now_s: float) -> float:
        """Milliseconds until a model that is not ready could run, if its loading is under way or began now."""
        took_ms = self._took_ms
        mean_ms = sum(took_ms.values()) / len(took_ms) if took_ms else UNKNOWN_MS
        whole_ms = took_ms.get(profile_digest, mean_ms)
        spent_ms = (now_s - self._began_s.get(profile_digest, now_s)) * 1e3
        return max(whole_ms - spent_ms, whole_ms * LEAST_SHARE)
