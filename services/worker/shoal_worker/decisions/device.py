"""The device as the worker sees it: batches sent, which of them run, and when a stream will be free."""

from __future__ import annotations

from dataclasses import dataclass

TRAVEL_S = 0.001
"""A batch reaches the runtime so long after it was sent, at least."""


@dataclass(slots=True)
class _Sent:
    predicted_ms: float
    """Device time if it runs beside others."""
    alone_ms: float
    """Device time if it has the device to itself."""
    sent_s: float
    started_s: float | None = None
    alone: bool = False

    def spent_ms(self, now_s: float, streams: int) -> float:
        """Device time that it has had."""
        if self.started_s is None:
            return 0.0
        return max(0.0, now_s - self.started_s) * 1e3 / (1 if self.alone else streams)


class Device:
    """Follows which batches the runtime runs, as its dispatcher decides: one that finds the device idle has it to
    itself until it ends; where several wait, they run on a stream each, beside one another.

    Device time is a batch's time on the device times its share of it: all alone, 1/streams beside others.
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
        """Whether a stream has no batch, running or sent."""
        return len(self._sent) < self.streams

    @property
    def has_next(self) -> bool:
        """Whether a batch stands ready behind those that run."""
        return len(self._sent) > self.streams

    def sent(self, batch_id: int, predicted_ms: float, now_s: float, alone_ms: float | None = None) -> None:
        """A batch was sent; `alone_ms` is its device time if it runs alone, where that differs."""
        self._advance(now_s)
        self._sent[batch_id] = _Sent(predicted_ms, predicted_ms if alone_ms is None else alone_ms, now_s)
        self._start(now_s)

    def predicted(self, batch_id: int, predicted_ms: float, alone_ms: float | None = None) -> None:
        """A batch that was sent is predicted anew: its exact size is known."""
        batch = self._sent[batch_id]
        batch.predicted_ms, batch.alone_ms = predicted_ms, predicted_ms if alone_ms is None else alone_ms

    def runs_alone(self, batch_id: int) -> bool:
        """Whether a batch that was sent has the device to itself, as far as is known."""
        return self._sent[batch_id].alone

    def finished(self, batch_id: int, now_s: float, ended_s: float | None = None) -> float:
        """A batch was answered; it left the device at `ended_s`. The milliseconds of device time that it had."""
        self._advance(now_s)
        batch = self._sent.pop(batch_id)
        ended_s = now_s if ended_s is None else min(ended_s, now_s)
        if batch.started_s is None:  # Then it ran beside the one that was taken to be alone.
            batch.started_s = batch.sent_s
            for other in self._sent.values():
                other.alone = False
        self._start(ended_s)
        return batch.spent_ms(ended_s, self.streams)

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
        running = [batch for batch in self._sent.values() if batch.started_s is not None]
        return min(max(0.0, self._left_ms(batch, now_s)) for batch in running)

    def starts_in_ms(self, now_s: float) -> float:
        """Milliseconds until a batch that is sent now would start. What is overdue is taken to need as long again."""
        if self.has_free_stream:
            return 0.0
        running = [self._left_ms(batch, now_s) for batch in self._sent.values() if batch.started_s is not None]
        waiting_ms = sum(batch.alone_ms for batch in self._sent.values() if batch.started_s is None)
        return min(abs(left_ms) for left_ms in running) + waiting_ms / self.streams

    def _left_ms(self, batch: _Sent, now_s: float) -> float:
        """Milliseconds until a running batch is predicted to end; below 0 when it is overdue."""
        if batch.alone:
            return batch.alone_ms - batch.spent_ms(now_s, 1)
        return (batch.predicted_ms - batch.spent_ms(now_s, self.streams)) * self.streams

    def _start(self, at_s: float) -> None:
        """Starts what the runtime starts at `at_s`, when a batch came or one ended."""
        running = [batch for batch in self._sent.values() if batch.started_s is not None]
        waiting = [batch for batch in self._sent.values() if batch.started_s is None]
        if not waiting or (running and running[0].alone):
            return
        if not running:
            there = sum(batch.sent_s + TRAVEL_S <= at_s for batch in waiting)
            if self.streams == 1 or there < 2:  # What comes later finds it running.
                waiting[0].alone, waiting[0].started_s = True, max(at_s, waiting[0].sent_s)
                return
        for batch in waiting[: self.streams - len(running)]:
            batch.started_s = max(at_s, batch.sent_s)

    def _advance(self, now_s: float) -> None:
        elapsed_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        if self._sent:
            self._busy_s += elapsed_s
