"""Why a mesh cannot be started, in one line that says what to do."""

from __future__ import annotations


class CannotStart(Exception):
    """The mesh cannot be started here and now; its text is one line for the person who asked."""
