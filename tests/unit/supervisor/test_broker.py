"""The broker's access outlives restarts, and its configuration is ours."""

import socket
from importlib import metadata
from pathlib import Path

import pytest

from shoal_common import limits
from shoal_supervisor import broker, ports
from shoal_supervisor.errors import CannotStart
from shoal_supervisor.state import StateFolder


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    state = StateFolder(tmp_path / 'a "quoted" folder')
    state.make()
    return state


def test_port_and_token_stay(state: StateFolder):
    first, second = broker.prepare(state), broker.prepare(state)
    assert first == second
    assert len(first.token) >= 32


def test_another_process_on_the_port_moves_the_port_but_not_the_token(state: StateFolder):
    first = broker.prepare(state)
    with socket.socket() as taken:
        taken.bind((ports.HOST, int(first.url.rsplit(":", 1)[1])))
        taken.listen()
        second = broker.prepare(state)
    assert second.url != first.url
    assert second.token == first.token


def test_damaged_access_is_made_anew(state: StateFolder):
    broker.prepare(state)
    (state.broker / "access.json").write_text("{")
    assert broker.prepare(state).token


def test_secrets_are_private(state: StateFolder):
    broker.prepare(state)
    for file in state.broker.iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_the_disk_that_it_may_take_is_bounded(state: StateFolder):
    broker.prepare(state)
    assert f"max_file_store: {limits.BROKER_FILE_BYTES}\n" in (state.broker / "nats.conf").read_text()


def test_without_the_package_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(CannotStart, match="nats-server is missing: install"):
        broker.find_binary()
