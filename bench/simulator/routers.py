"""Routers: each sends a text to a device the moment it comes."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from bench.simulator.clock import Clock


class Router(Protocol):
    """Chooses a device for each text."""

    def choose(self, model: int) -> int:
        """The device for a text of a model."""
        ...

    def load(self, device: int, change: int) -> None:
        """A device has so many more unanswered texts."""
        ...


class RoundRobin:
    """The devices in turn, whatever the model; or in turn those that hold the model."""

    def __init__(self, devices: int, placement: Sequence[Sequence[int]] | None = None) -> None:
        self._everywhere = itertools.cycle(range(devices))
        self._turns = [itertools.cycle(holders) for holders in placement] if placement else None

    def choose(self, model: int) -> int:
        return next(self._turns[model] if self._turns else self._everywhere)

    def load(self, device: int, change: int) -> None:
        pass


class View:
    """Unanswered texts of each device, as they were `age_s` ago."""

    def __init__(self, clock: Clock, devices: int, age_s: float) -> None:
        self._clock = clock
        self._age_s = age_s
        self._changes: deque[tuple[float, int, int]] = deque()
        self._loads = [0] * devices

    def change(self, device: int, change: int) -> None:
        """A device's load changes now."""
        if self._age_s:
            self._changes.append((self._clock.now_s + self._age_s, device, change))
        else:
            self._loads[device] += change

    def loads(self) -> list[int]:
        """Of all devices; the list changes with the next call."""
        changes, now_s = self._changes, self._clock.now_s
        while changes and changes[0][0] <= now_s:
            _, device, change = changes.popleft()
            self._loads[device] += change
        return self._loads


class LeastOutstanding:
    """The device with the fewest unanswered texts among all, or among those that hold the model; ties at random."""

    def __init__(
        self, view: View, devices: int, rng: random.Random, placement: Sequence[Sequence[int]] | None = None
    ) -> None:
        self._view = view
        self._placement = placement
        self._rng = rng
        self._turns = list(range(devices))
        self.load = view.change

    def choose(self, model: int) -> int:
        loads = self._view.loads()
        holders = self._placement[model] if self._placement else self._turns
        first = int(self._rng.random() * len(holders))
        best, least = holders[first], loads[holders[first]]
        for position in range(first - len(holders) + 1, first):
            if loads[holders[position]] < least:
                best = holders[position]
                least = loads[best]
        return best


class TwoChoices:
    """The one with fewer unanswered texts of two devices drawn at random."""

    def __init__(self, view: View, devices: int, rng: random.Random) -> None:
        self._view = view
        self._devices = devices
        self._rng = rng
        self.load = view.change

    def choose(self, model: int) -> int:
        loads = self._view.loads()
        one = int(self._rng.random() * self._devices)
        other = (one + 1 + int(self._rng.random() * (self._devices - 1))) % self._devices
        return one if loads[one] <= loads[other] else other


def placement(shares: Sequence[float], devices: int) -> list[list[int]]:
    """Devices of each model, in proportion to its share of the demand, at least one.

    The shares are laid end to end along the devices: a model holds those that its stretch touches, by more than
    a hundredth of a device. Two models that meet on one device share it.
    """
    held, begin = [], 0.0
    for share in shares:
        end = begin + share * devices
        first, last = int(begin + 0.01), int(max(begin, end - 0.01))
        held.append(list(range(min(first, devices - 1), min(last, devices - 1) + 1)))
        begin = end
    return held
