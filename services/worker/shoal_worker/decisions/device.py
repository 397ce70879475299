"""The device as the worker sees it: batches sent, which of them run, and when a stream will be free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Sent:
    predicted_ms: float
    spent_ms: float = 0.0
    """Device time it has had."""


class Device:
    """Runs the first `streams` batches that it was sent, in order; they share it equally.

    Device time is what a batch would take alone: two that run side by side for 10 ms had 5 ms each.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self._busy_s = 0.0
        self._sent: dict[int, _Sent] = {}
        self._at_s = 0.0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def has_free_stream(self) -> bool:
        """Whether a batch sent now would start at once."""
        return len(self._sent) < self.streams

    @property
    def has_next(self) -> bool:
        """Whether a batch stands ready behind those that run."""
        return len(self._sent) > self.streams

    def sent(self, batch_id: int, predicted_ms: float, now_s: float) -> None:
        """A batch was sent."""
        self._advance(now_s)
        self._sent[batch_id] = _Sent(predicted_ms)

    def predicted(self, batch_id: int, predicted_ms: float) -> None:
        """A batch that was sent is predicted anew: its exact size is known."""
        self._sent[batch_id].predicted_ms = predicted_ms

    def finished(self, batch_id: int, now_s: float) -> float:
        """A batch was answered: the milliseconds of device time that it had."""
        self._advance(now_s)
        return self._sent.pop(batch_id).spent_ms

    def reset(self, now_s: float) -> None:
        """Its batches are lost."""
        self._advance(now_s)
        self._sent.clear()

    def total_busy_s(self, now_s: float) -> float:
        """Seconds in which at least one batch ran, ever."""
        self._advance(now_s)
        return self._busy_s

    def free_in_ms(self, now_s: float) -> float:
        """Milliseconds until a stream is predicted to be free: 0 when one is, or when one is overdue."""
        if self.has_free_stream:
            return 0.0
        self._advance(now_s)
        running = self._running()
        return min(max(0.0, batch.predicted_ms - batch.spent_ms) for batch in running) * len(running)

    def _running(self) -> list[_Sent]:
        return list(self._sent.values())[: self.streams]

    def _advance(self, now_s: float) -> None:
        elapsed_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        if self._sent:
            self._busy_s += elapsed_s
            running = self._running()
            for batch in running:
                batch.spent_ms += elapsed_s * 1e3 / len(running)
