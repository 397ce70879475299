"""Watchers: events in order for all, and an end for one that does not read."""

from __future__ import annotations

import pytest

from shoal_common import errors
from shoal_registry.state import Event
from shoal_registry.watchers import WAITING_EVENTS, Watchers


async def test_events_come_in_order():
    watchers = Watchers()
    with watchers.joined() as watcher:
        watchers.publish(Event(revision=n) for n in range(5))
        events = watcher.events()
        assert [(await anext(events)).revision for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_a_slow_watcher_is_ended_and_others_are_not():
    watchers = Watchers()
    with watchers.joined() as slow, watchers.joined() as quick:
        events = quick.events()
        for n in range(WAITING_EVENTS + 1):
            watchers.publish([Event(revision=n)])
            assert (await anext(events)).revision == n
        with pytest.raises(errors.CallError) as ended:
            await anext(slow.events())
        assert ended.value.reason == "WATCHER_TOO_SLOW"


async def test_closing_ends_everybody():
    watchers = Watchers()
    with watchers.joined() as watcher:
        watchers.publish([Event(revision=1)])
        watchers.close()
        with pytest.raises(errors.CallError):
            await anext(watcher.events())


def test_nothing_is_kept_for_those_who_left():
    watchers = Watchers()
    with watchers.joined():
        pass
    assert not watchers._watchers
