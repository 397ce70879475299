"""Mixed load whose every answer is checked by value and every ending by type: unary and streams, both
classes, short and long texts, calls that are cancelled, deadlines too short to be met."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType

import grpc

from shoal.v1 import inference_pb2 as pb
from tests.support import reference, texts
from tests.support.load import problem
from tests.support.raw import RawClient, Refusal

DEADLINE_S = 30.0
LATE_S = 5.0
"""A call that ends so long after its deadline has hung."""
TYPED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
"""How a call may end while processes die: the caller can send it again."""
PAUSE_S = 0.05


class MixedLoad:
    """Callers in threads, without retries, for as long as the block runs."""

    def __init__(self, address: str, seed: int, model: str = "minilm") -> None:
        self._address = address
        self._model = model
        self._seed = seed
        self._texts = [*texts.mixed(seed, 96, most_tokens=60), *texts.mixed(seed + 1, 4, most_tokens=250)]
        self._expected = reference.encode(self._texts)
        self._stop = threading.Event()
        self._lock = threading.Condition()
        kinds: list[Callable[[random.Random, RawClient], None]] = [
            self._unary,
            self._unary,
            self._unary,
            self._many,
            self._bulk,
            self._stream,
            self._cancelled,
            self._hasty,
        ]
        self._threads = [
            threading.Thread(target=self._call, args=(n, kind), daemon=True) for n, kind in enumerate(kinds)
        ]
        self.answered = 0
        """Requests that were answered rightly."""
        self.endings: Counter[str] = Counter()
        """Requests that were not answered, by status and reason."""
        self.wrong: list[str] = []
        self.untyped: list[str] = []
        self.lost: list[str] = []
        """Calls that ended long after their deadline, or with fewer answers than requests and no status."""

    def __enter__(self) -> MixedLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S + LATE_S + 10)
        self.lost += [f"caller {thread.name} hangs" for thread in self._threads if thread.is_alive()]

    def wait_for_answers(self, count: int, timeout_s: float = 60) -> None:
        """Returns once so many more requests were answered rightly."""
        with self._lock:
            goal = self.answered + count
            assert self._lock.wait_for(lambda: self.answered >= goal, timeout_s), (
                f"{self.answered} of {goal} answers; {self.summary()}"
            )

    def summary(self) -> str:
        """Counts and the first of what should not have been."""
        return (
            f"answered {self.answered}, ended {dict(self.endings)}, wrong {self.wrong[:3]}, "
            f"untyped {self.untyped[:3]}, lost {self.lost[:3]}"
        )

    def _call(self, number: int, kind: Callable[[random.Random, RawClient], None]) -> None:
        rng = random.Random(self._seed * 1000 + number)
        with grpc.insecure_channel(self._address, [("grpc.max_reconnect_backoff_ms", 200)]) as channel:
            client = RawClient(channel)
            while not self._stop.is_set():
                kind(rng, client)

    def _unary(self, rng: random.Random, client: RawClient) -> None:
        self._one(client, self._picks(rng, 8))

    def _many(self, rng: random.Random, client: RawClient) -> None:
        """Several units."""
        self._one(client, [rng.randrange(96) for _ in range(80)])

    def _bulk(self, rng: random.Random, client: RawClient) -> None:
        self._one(client, self._picks(rng, 16), pb.PRIORITY_BULK)

    def _hasty(self, rng: random.Random, client: RawClient) -> None:
        """A deadline that is met now and then."""
        self._one(client, self._picks(rng, 4), deadline_s=rng.uniform(0.005, 0.2))
        self._stop.wait(PAUSE_S)

    def _cancelled(self, rng: random.Random, client: RawClient) -> None:
        """A caller that leaves at once or after a while."""
        request = self._request(self._picks(rng, 8), pb.PRIORITY_UNSPECIFIED)
        call = client.encode_bytes.future(request.SerializeToString(), timeout=DEADLINE_S)
        self._stop.wait(rng.uniform(0.0, 0.1))
        call.cancel()

    def _stream(self, rng: random.Random, client: RawClient) -> None:
        """An Infer stream with a few requests in flight."""
        sent: dict[str, list[int]] = {}

        def requests() -> Iterator[pb.InferRequest]:
            for n in range(8):
                picks = self._picks(rng, 6)
                sent[str(n)] = picks
                yield pb.InferRequest(request_id=str(n), encode=self._request(picks, pb.PRIORITY_UNSPECIFIED))

        started = time.monotonic()
        try:
            for answer in client.infer(requests(), timeout=DEADLINE_S):
                picks = sent.pop(answer.request_id)
                if answer.HasField("error"):
                    self._ended(grpc_name(answer.error.code), answer.error.message)
                else:
                    self._checked(answer.encode, picks)
        except grpc.RpcError as error:
            self._failed(Refusal(error), time.monotonic() - started, DEADLINE_S)
            return
        if sent:
            with self._lock:
                self.lost.append(f"a stream ended well with {len(sent)} requests unanswered")

    def _one(
        self,
        client: RawClient,
        picks: list[int],
        priority: pb.Priority = pb.PRIORITY_UNSPECIFIED,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        started = time.monotonic()
        try:
            response = client.encode(self._request(picks, priority), timeout=deadline_s)
        except grpc.RpcError as error:
            self._failed(Refusal(error), time.monotonic() - started, deadline_s)
            return
        self._checked(response, picks)

    def _picks(self, rng: random.Random, most: int) -> list[int]:
        return [rng.randrange(len(self._texts)) for _ in range(rng.randint(1, most))]

    def _request(self, picks: list[int], priority: pb.Priority) -> pb.EncodeRequest:
        items = [pb.Item(id=str(n), text=self._texts[n]) for n in picks]
        return pb.EncodeRequest(model=self._model, priority=priority, items=items)

    def _failed(self, refusal: Refusal, seconds: float, deadline_s: float) -> None:
        self._ended(refusal.code.name, refusal.text)
        if seconds > deadline_s + LATE_S:
            with self._lock:
                self.lost.append(f"a call with {deadline_s:.3f} s ended after {seconds:.1f} s: {refusal.code.name}")
        self._stop.wait(PAUSE_S)

    def _ended(self, code: str, text: str) -> None:
        with self._lock:
            self.endings[code] += 1
            if code not in TYPED:
                self.untyped.append(f"{code}: {text}")

    def _checked(self, response: pb.EncodeResponse, picks: list[int]) -> None:
        wrong = problem(response, picks, self._expected)
        with self._lock:
            if wrong:
                self.wrong.append(wrong)
            else:
                self.answered += 1
                self._lock.notify_all()


def grpc_name(number: int) -> str:
    """A status code's name."""
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), str(number))
