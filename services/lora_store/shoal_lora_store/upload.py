"""One upload as it comes: counts and hashes the bytes, and says whether they are what was announced."""

from __future__ import annotations

import hashlib

from shoal_common import errors, limits


class Upload:
    """Bytes that should have a digest and a length. Pure: it keeps neither."""

    def __init__(self, digest: str, size_bytes: int) -> None:
        self._digest = digest
        self._size_bytes = size_bytes
        self._hash = hashlib.sha256()
        self._taken_bytes = 0

    def take(self, chunk: bytes) -> None:
        """The next bytes.

        Raises:
            CallError: INVALID_ARGUMENT; a chunk over the limit, or more bytes than were announced.
        """
        if len(chunk) > limits.CHUNK_BYTES:
            raise errors.too_large("chunk", len(chunk), limits.CHUNK_BYTES)
        self._taken_bytes += len(chunk)
        if self._taken_bytes > self._size_bytes:
            raise errors.invalid_field(
                "header.size_bytes", f"says {self._size_bytes:,}, and more bytes came", "SIZE_MISMATCH"
            )
        self._hash.update(chunk)

    def check(self) -> None:
        """All bytes came.

        Raises:
            CallError: INVALID_ARGUMENT; they are fewer than announced, or of another digest.
        """
        if self._taken_bytes < self._size_bytes:
            raise errors.invalid_field(
                "header.size_bytes", f"says {self._size_bytes:,}, but {self._taken_bytes:,} bytes came", "SIZE_MISMATCH"
            )
        if (digest := self._hash.hexdigest()) != self._digest:
            raise errors.invalid_field(
                "header.digest", f"says {self._digest}, but the bytes' sha256 is {digest}", "DIGEST_MISMATCH"
            )
