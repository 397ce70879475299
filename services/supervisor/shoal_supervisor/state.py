"""The state folder: what lies where in it, and that one supervisor at a time has it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from shoal_supervisor.errors import CannotStart


class StateFolder:
    """Paths of a state folder. Making one touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.lock = self.path / "lock"
        """Locked by the supervisor alone; holds its pid."""
        self.alive = self.path / "alive"
        """Locked, shared, by the supervisor and everything that it started, down to the last grandchild."""
        self.status = self.path / "status.json"
        self.logs = self.path / "logs"
        self.blobs = self.path / "blobs"
        self.operator_token = self.path / "operator-token"
        self.broker = self.path / "broker"
        self.traces = self.path / "traces.jsonl"

    @property
    def name(self) -> str:
        """Eight hex digits that stand for the folder's path."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    def log(self, process: str) -> Path:
        """Where a process logs."""
        return self.logs / f"{process}.log"

    def holder(self) -> int | None:
        """The pid of the supervisor that has this folder; None when there is none."""
        try:
            with self.lock.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read().strip() or 0)
                return None
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder for the block, made if it is not there; the lock ends with the process.

        Raises:
            CannotStart: another supervisor holds it, or it cannot be written.
        """
        self.make()
        try:
            lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_writable(error) from None
        try:
            if not _lock(lock):
                raise CannotStart(
                    f"a mesh runs in {self.path} already (pid {self.holder()}): "
                    f"`shoal status --state {self.path}` shows it, `shoal down --state {self.path}` ends it"
                )
            pid = f"{os.getpid()}\n".encode()
            os.pwrite(lock, pid, 0)  # over the last holder's, so that no reader meets an empty file
            os.ftruncate(lock, len(pid))
            yield
        finally:
            os.close(lock)

    def make(self) -> None:
        """Makes the folder and those in it, private to this user.

        Raises:
            CannotStart: it cannot be written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.logs, self.blobs, self.broker):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from None

    def _not_writable(self, error: OSError) -> CannotStart:
        return CannotStart(
            f"the state folder {self.path} cannot be written ({error.strerror}): choose another with --state"
        )


def _lock(file: int) -> bool:
    """Whether the lock is ours now. One that only asks who holds it has it for a moment, so a few tries."""
    for _ in range(10):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        return True
    return False
