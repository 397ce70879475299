"""One supervisor at a time has a state folder."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_supervisor.errors import CannotStart
from shoal_supervisor.leftovers import alive_lock
from shoal_supervisor.runtime_folder import LONGEST_NAME, SOCKET_PATH_BYTES, runtime_folder
from shoal_supervisor.state import StateFolder

HOLD = """
import sys
from pathlib import Path
from shoal_supervisor.state import StateFolder
with StateFolder(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_holder_is_known_and_forgotten(tmp_path: Path):
    state = StateFolder(tmp_path / "a" / "b")
    assert state.holder() is None
    with state.held():
        assert state.holder() == os.getpid()
    assert state.holder() is None
    with state.held():
        assert state.holder() == os.getpid()


def test_a_held_folder_is_refused_in_one_line_that_names_the_holder(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(CannotStart) as refusal, StateFolder(tmp_path).held():
            pass
        assert f"pid {holder.pid}" in str(refusal.value)
        assert "\n" not in str(refusal.value)
        holder.kill()
    with StateFolder(tmp_path).held():
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"cannot be written .* --state"), StateFolder(tmp_path / "file" / "x").held():
        pass


def test_what_it_keeps_is_private(tmp_path: Path):
    state = StateFolder(tmp_path / "state")
    with state.held():
        for path in (state.path, state.logs, state.broker, state.blobs):
            assert path.stat().st_mode & 0o077 == 0


def test_a_start_waits_for_what_inherited_the_alive_file(tmp_path: Path):
    state = StateFolder(tmp_path)
    state.make()
    with alive_lock(state) as alive:
        # A grandchild that nobody knows of, as a killed supervisor would leave it.
        command = "read -r _; exit 0"
        left = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, pass_fds=(alive,))
    script = "import sys\nfrom pathlib import Path\nfrom shoal_supervisor import leftovers, state\n"
    script += "with leftovers.alive_lock(state.StateFolder(Path(sys.argv[1]))): print('mine')\n"
    waiting = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1.0)
    left.communicate(b"")
    assert waiting.communicate(timeout=30)[0] == b"mine\n"


@pytest.fixture
def user_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An XDG_RUNTIME_DIR; short, as those are."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def test_the_runtime_folder_is_private_short_and_removed(tmp_path: Path, user_folder: Path):
    with runtime_folder(StateFolder(tmp_path / "state")) as folder:
        assert folder.parent == user_folder
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "left.sock").touch()
    assert not folder.exists()


def test_a_killed_supervisors_runtime_folder_is_emptied(tmp_path: Path, user_folder: Path):
    state = StateFolder(tmp_path / "state")
    left = user_folder / f"shoal-{state.name}"
    left.mkdir()
    (left / "gateway.sock").touch()
    with runtime_folder(state) as folder:
        assert folder == left
        assert not list(folder.iterdir())


@pytest.mark.parametrize("too_long", ["x" * 100, "absent/folder"])
def test_sockets_fit_wherever_the_user_s_folder_is(too_long: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / too_long))
    with runtime_folder(StateFolder(tmp_path / "state")) as folder:
        assert len(os.fsencode(folder)) + len(LONGEST_NAME) <= SOCKET_PATH_BYTES


def test_a_link_in_the_runtime_folders_place_is_not_followed(tmp_path: Path, user_folder: Path):
    state = StateFolder(tmp_path / "state")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (user_folder / f"shoal-{state.name}").symlink_to(precious)
    with pytest.raises(CannotStart, match="remove it"), runtime_folder(state):
        pass
    assert (precious / "file").exists()
