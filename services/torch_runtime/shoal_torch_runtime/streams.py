"""The threads that call torch: one OS thread a stream, for as long as the process lives.

OpenMP keeps a pool of threads per calling thread. Only the wide stream has one: with a second, threads outnumber the
cores, and forwards of the first were 6 to 12 % slower though the second was idle. Narrow streams call with one thread
each, which needs no pool: two at once take as long as one alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from shoal_torch_runtime.dispatcher import WIDE, Dispatcher, Start

T = TypeVar("T")
_Job = Callable[[], None]


class Streams:
    """Runs functions on a device's streams, as the dispatcher decides. May be called from any thread."""

    def __init__(self, streams: int, threads: int) -> None:
        """Starts the threads.

        Args:
            streams: Batches at once when work waits.
            threads: Cores of a batch that runs alone.
        """
        self._dispatcher: Dispatcher[_Job] = Dispatcher(streams)
        self._lock = threading.Lock()
        cores = [threads, *([1] * streams if streams > 1 else [])]
        self._queues: list[SimpleQueue[_Job]] = [SimpleQueue() for _ in cores]
        for stream, count in enumerate(cores):
            threading.Thread(target=self._run, args=(stream, count), name=f"stream-{stream}", daemon=True).start()

    def submit(self, function: Callable[[], T], *, alone: bool = False) -> Future[T]:
        """Runs a function on the stream that the dispatcher chooses; `alone` on the wide one, with the others still."""
        future: Future[T] = Future()
        with self._lock:
            self._hand_out(self._dispatcher.add(partial(_settle, function, future), alone=alone))
        return future

    def on_each_narrow(self, function: Callable[[], None]) -> None:
        """Runs a function on every narrow stream at once, and waits. Only for a job that runs alone."""
        futures: list[Future[None]] = [Future() for _ in self._queues[WIDE + 1 :]]
        for queue, future in zip(self._queues[WIDE + 1 :], futures, strict=True):
            queue.put(partial(_settle, function, future))
        for future in futures:
            future.result()

    def _hand_out(self, starts: list[Start[_Job]]) -> None:
        for start in starts:
            self._queues[start.stream].put(partial(self._take_turn, start))

    def _take_turn(self, start: Start[_Job]) -> None:
        start.job()
        with self._lock:
            self._hand_out(self._dispatcher.ended(start.stream))

    def _run(self, stream: int, threads: int) -> None:
        torch.get_num_threads()  # else the first parallel call would take over what another thread set last
        torch.set_num_threads(threads)
        while True:
            self._queues[stream].get()()


def _settle(function: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
