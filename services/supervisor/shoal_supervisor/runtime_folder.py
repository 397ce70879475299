"""The folder of a mesh's Unix sockets: short, private, and gone when the mesh is."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from shoal_supervisor.errors import CannotStart
from shoal_supervisor.state import StateFolder

SOCKET_PATH_BYTES = 107
LONGEST_NAME = "/runtime/" + 32 * "x"
"""Room for the longest name of a socket below the folder: those of runtimes are the sidecar's to choose."""


@contextlib.contextmanager
def runtime_folder(state: StateFolder) -> Iterator[Path]:
    """An empty folder for sockets, removed after the block. The state folder must be held.

    Raises:
        CannotStart: it cannot be made, or belongs to somebody else.
    """
    folder = _choose(os.environ.get("XDG_RUNTIME_DIR"), f"shoal-{state.name}")
    try:
        # What a killed supervisor left behind; never followed if it is a link.
        if folder.exists() and _is_ours(folder):
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise CannotStart(f"cannot make {folder} for the mesh's sockets ({error.strerror}): remove it") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _choose(user_folder: str | None, name: str) -> Path:
    if user_folder:
        folder = Path(user_folder, name)
        fits = len(os.fsencode(folder)) + len(LONGEST_NAME) <= SOCKET_PATH_BYTES
        if fits and folder.parent.is_dir() and os.access(folder.parent, os.W_OK):
            return folder
    return Path("/tmp", name)  # noqa: S108 - made with mode 0700, and refused if another user made it


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
