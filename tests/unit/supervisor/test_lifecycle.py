"""States of a process as health and exits change them."""

import signal

import pytest

from shoal_supervisor.lifecycle import FAILED_STARTS, WRONG_SETTINGS, Lifecycle, exit_reason


def test_a_life():
    life = Lifecycle()
    life.spawned(7, now=10.0)
    assert (life.state, life.pid, life.since) == ("starting", 7, 10.0)
    life.serving(False, now=11.0)
    assert (life.state, life.since) == ("starting", 10.0)
    life.serving(True, now=12.5)
    life.serving(True, now=13.0)
    assert (life.state, life.since, life.ready_s) == ("ready", 12.5, 2.5)
    life.serving(False, now=14.0)
    assert (life.state, life.ready_s) == ("not_serving", 2.5)
    life.serving(True, now=15.0)
    assert (life.state, life.since, life.ready_s) == ("ready", 15.0, 2.5)


def test_a_restart():
    life = Lifecycle()
    life.spawned(7, now=10.0)
    life.serving(True, now=11.0)
    life.ended("killed by SIGKILL", None, now=20.0)
    assert (life.state, life.pid, life.restarts, life.last_exit) == ("restarting", None, 1, "killed by SIGKILL")
    life.serving(True, now=20.0)
    assert life.state == "restarting", "the health of a process that is gone says nothing"
    life.spawned(8, now=20.0)
    assert (life.state, life.pid, life.ready_s) == ("starting", 8, None)
    life.stopped(now=21.0)
    assert (life.state, life.pid, life.restarts) == ("stopped", None, 1)


def test_a_process_that_never_was_ready_is_given_up():
    life = Lifecycle()
    for start in range(FAILED_STARTS):
        assert life.hopeless is None
        life.spawned(start + 1, now=start)
        life.ended("exit status 1", 1, now=start)
    assert life.hopeless == "exit status 1"


def test_wrong_settings_are_given_up_at_once():
    life = Lifecycle()
    life.spawned(1, now=0)
    life.ended("exit status 2", WRONG_SETTINGS, now=0)
    assert life.hopeless


def test_a_process_that_was_ready_is_never_given_up():
    life = Lifecycle()
    life.spawned(1, now=0)
    life.serving(True, now=1)
    for now in range(2, 20):
        life.ended("exit status 2", WRONG_SETTINGS, now=now)
        life.spawned(now, now=now)
    assert life.hopeless is None


@pytest.mark.parametrize(
    ("returncode", "reason"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-signal.SIGKILL, "killed by SIGKILL"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-40, "killed by signal 40"),
    ],
)
def test_exits_in_words(returncode: int, reason: str):
    assert exit_reason(returncode) == reason
