"""What can go wrong in the runtime without ending it; each becomes an error text in an answer."""

from __future__ import annotations


class LoadError(Exception):
    """A model cannot be loaded. The text names the file or the profile's field, and is sent in LoadFailed."""


class BatchError(Exception):
    """A batch cannot be computed. The text is sent in BatchResult."""


class CommandError(Exception):
    """A line on stdin is no command that can be followed. The text is sent in an error event.

    Attributes:
        id: The runtime that the command is about; None where it cannot be read.
    """

    def __init__(self, message: str, id: str | None = None) -> None:
        super().__init__(message)
        self.id = id
