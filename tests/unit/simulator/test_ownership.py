"""Ownership of units on a machine, over random interleavings of messages, crashes and restarts.

The exchange as the simulator has it, and workers that know of it only by messages that take their time: a unit is in
one batch at most, its owner is the one worker that thinks so once all messages are read, nothing is lost, and nobody
is answered twice.
"""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bench.simulator.exchange import Exchange, Grants

WORKERS = 3
some_worker = st.integers(0, WORKERS - 1)
some_share = st.integers(1, 3)


class Worker:
    """What a worker thinks."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.sent: set[str] = set()
        """Of those, the ones in batches that it has sent."""
        self.grants = 0
        self.to_exchange: deque[tuple] = deque()
        self.from_exchange: deque[tuple] = deque()

    @property
    def ready(self) -> list[str]:
        return sorted(self.held - self.sent)


class Machine(RuleBasedStateMachine):
    """One machine, and the queue that it pulls from."""

    @initialize()
    def begin(self) -> None:
        self.exchange = Exchange()
        self.now_s = 0.0
        self.workers: dict[int, Worker] = {}
        self.queue: deque[str] = deque()
        self.published = 0
        self.batches: list[tuple[int, list[str]]] = []
        self.answers: Counter[str] = Counter()
        for number in range(WORKERS):
            self.attach(number)

    # What happens.

    @rule(number=some_worker, count=some_share)
    def pull(self, number: int, count: int) -> None:
        """What waits, and as many new units."""
        for _ in range(count):
            self.queue.append(f"unit-{self.published}")
            self.published += 1
        self.take(number)

    @rule(number=some_worker, free_in_ms=st.sampled_from([0.0, 5.0, 50.0]), room_ms=st.sampled_from([0.0, 2.0, 9.0]))
    def post(self, number: int, free_in_ms: float, room_ms: float) -> None:
        if worker := self.workers.get(number):
            worker.to_exchange.append(("post", free_in_ms, room_ms, worker.grants))

    @rule(number=some_worker, starts_in_ms=st.sampled_from([1.0, 8.0, 80.0]))
    def offer(self, number: int, starts_in_ms: float) -> None:
        if worker := self.workers.get(number):
            worker.to_exchange.append(("offer", [(unit, 1.0, starts_in_ms) for unit in worker.ready]))

    @rule(number=some_worker, count=some_share)
    def send_batch(self, number: int, count: int) -> None:
        if (worker := self.workers.get(number)) and (units := worker.ready[:count]):
            worker.sent |= set(units)
            worker.to_exchange.append(("run", units))

    @rule(number=some_worker)
    def put_back(self, number: int) -> None:
        if (worker := self.workers.get(number)) and worker.ready:
            worker.to_exchange.append(("return", worker.ready[0]))

    @rule(number=some_worker, count=st.sampled_from([1, 2, 99]))
    def exchange_reads(self, number: int, count: int) -> None:
        for _ in range(count):
            if (worker := self.workers.get(number)) and worker.to_exchange:
                self.exchange_hears(number, worker.to_exchange.popleft())

    @rule(number=some_worker, count=st.sampled_from([1, 2, 99]))
    def worker_reads(self, number: int, count: int) -> None:
        for _ in range(count):
            if (worker := self.workers.get(number)) and worker.from_exchange:
                self.worker_hears(worker, worker.from_exchange.popleft())

    @rule()
    def all_is_read(self) -> None:
        for read in (self.exchange_reads, self.worker_reads):
            for number in range(WORKERS):
                read(number, 99)

    @precondition(lambda self: self.batches)
    @rule()
    def finish(self) -> None:
        number, units = self.batches.pop(0)
        assert self.exchange.forget(number, units) == units
        self.answers.update(units)
        self.workers[number].from_exchange.append(("done", units))

    @rule(number=some_worker)
    def crash(self, number: int) -> None:
        if self.workers.pop(number, None):
            self.batches = [batch for batch in self.batches if batch[0] != number]
            self.hand_over(self.exchange.gone(number, self.now_s))

    @rule(number=some_worker)
    def attach(self, number: int) -> None:
        if number not in self.workers:
            self.workers[number] = Worker()
            self.hand_over(self.exchange.attached(number, self.now_s))

    @rule()
    def deliver_again(self) -> None:
        """The queue hears of no work on a unit any more."""
        worked_on = set().union(*(worker.held for worker in self.workers.values()), self.queue)
        granted = {
            unit
            for worker in self.workers.values()
            for kind, *what in worker.from_exchange
            if kind == "granted"
            for unit in what[0]
        }
        for unit in (f"unit-{number}" for number in range(self.published)):
            if not self.answers[unit] and unit not in worked_on | granted:
                self.queue.append(unit)

    @rule(number=some_worker)
    def deliver_too_early(self, number: int) -> None:
        """The queue did not hear in time of the work on a unit: there are two copies."""
        if (worker := self.workers.get(number)) and worker.held:
            self.queue.append(min(worker.held))
            self.take((number + 1) % WORKERS)

    @rule(wait_s=st.sampled_from([0.001, 0.02]))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s

    # Who does what about it.

    def take(self, number: int) -> None:
        while number in self.workers and self.queue:
            worker, unit = self.workers[number], self.queue.popleft()
            if unit in worker.held:
                continue  # It knows it: of its deliveries the newest counts.
            worker.held.add(unit)
            worker.to_exchange.append(("admit", unit))

    def exchange_hears(self, number: int, message: tuple) -> None:
        kind, *what = message
        worker = self.workers[number]
        if kind == "admit":
            [unit] = what
            if self.answers[unit]:  # A worker knows what was answered, and does not admit it.
                worker.held.discard(unit)
                return
            worker.from_exchange.append(("admitted", unit, self.exchange.admit(number, unit)))
            self.hand_over(self.exchange.tokenized([unit], self.now_s))
        elif kind == "post":
            free_in_ms, room_ms, grants = what
            self.hand_over(self.exchange.post(number, free_in_ms, room_ms, grants, self.now_s))
        elif kind == "offer":
            [offers] = what
            self.hand_over(self.exchange.offer(number, offers, self.now_s))
        elif kind == "return":
            [unit] = what
            if unit not in worker.sent and self.exchange.forget(number, [unit]):
                worker.from_exchange.append(("returned", unit))
        else:
            [units] = what
            strange = self.exchange.claim(number, units)
            if strange:
                worker.from_exchange.append(("refused", units, strange))
            else:
                self.batches.append((number, units))

    def worker_hears(self, worker: Worker, message: tuple) -> None:
        kind, *what = message
        if kind == "admitted":
            unit, owner = what
            if self.workers.get(owner) is not worker:
                worker.held.discard(unit)
        elif kind == "granted":
            worker.held |= set(what[0])
            worker.grants += 1
        elif kind == "taken":
            worker.held.discard(what[0])
            worker.sent.discard(what[0])
        elif kind == "refused":
            units, strange = what
            worker.sent -= set(units)
            worker.held -= set(strange)
        elif kind == "returned":
            worker.held.discard(what[0])
            self.queue.append(what[0])
        else:
            worker.held -= set(what[0])
            worker.sent -= set(what[0])

    def hand_over(self, grants: Grants) -> None:
        for number, moved in grants.items():
            self.workers[number].from_exchange.append(("granted", [unit for unit, _ in moved]))
            for unit, former in moved:
                if former != number and former in self.workers:
                    self.workers[former].from_exchange.append(("taken", unit))

    # What must hold.

    @invariant()
    def a_unit_is_in_one_batch_and_answered_once(self) -> None:
        running = Counter(unit for _, units in self.batches for unit in units)
        assert not running or max(running.values()) == 1
        assert not self.answers or max(self.answers.values()) == 1
        assert not running.keys() & self.answers.keys()

    @invariant()
    def once_all_is_read_the_owner_is_who_thinks_so(self) -> None:
        if any(worker.to_exchange or worker.from_exchange for worker in self.workers.values()):
            return
        for number, worker in self.workers.items():
            for unit in worker.held:
                assert self.exchange.owner(unit) == number
        owned = {unit for worker in self.workers.values() for unit in worker.held}
        for unit in (f"unit-{number}" for number in range(self.published)):
            owner = self.exchange.owner(unit)
            assert owner is None or owner not in self.workers or unit in owned

    def teardown(self) -> None:
        """In the end all is well again: then everything was answered."""
        for number in range(WORKERS):
            self.attach(number)
        for _ in range(20 + 4 * self.published):
            self.deliver_again()
            for number in range(WORKERS):
                self.take(number)
                self.exchange_reads(number, 99)
                self.worker_reads(number, 99)
                self.send_batch(number, 3)
            while self.batches:
                self.finish()
            if len(self.answers) == self.published:
                break
        assert sorted(self.answers) == sorted(f"unit-{number}" for number in range(self.published))


TestOwnership = Machine.TestCase
TestOwnership.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
