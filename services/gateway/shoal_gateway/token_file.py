"""The tokens that are accepted now: read from their file, and again when it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeAlias

from shoal_common import logs, tokens
from shoal_common.tokens import BadTokens, Identity

log = logs.get("tokens")
LOOK_S = 1.0
Stamp: TypeAlias = tuple[int, int, int] | None


class TokenFile:
    """Identities by hashes of tokens. A file that was broken while this runs changes nothing."""

    def __init__(self, path: Path, operator_sha256: str = "") -> None:
        """Reads the file; raises BadTokens. The operator's token is valid beside those of the file."""
        self._path = path
        self._fixed = {operator_sha256: tokens.OPERATOR} if operator_sha256 else {}
        self._stamp = _stamp(path)
        self._identities = self._read()

    def find(self, token: str) -> Identity | None:
        """Who has this token. It is looked up by its hash, so that the time it takes says nothing of it."""
        return self._identities.get(tokens.digest(token))

    async def follow(self) -> None:
        """Looks for ever whether the file has changed."""
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                self._identities = await asyncio.to_thread(self._read)
            except BadTokens as error:
                log.error("the file of tokens is not taken; those from before stay valid", error=str(error))
            else:
                log.info("tokens were read anew", tokens=len(self._identities))

    def _read(self) -> dict[str, Identity]:
        return tokens.identities(tokens.read(self._path)) | self._fixed


def _stamp(path: Path) -> Stamp:
    """What changes with the file; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
