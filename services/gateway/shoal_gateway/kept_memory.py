"""Keeps the memory that large messages took for the next ones: the kernel would zero and map it anew for each."""

from __future__ import annotations

import contextlib
import ctypes

from shoal_common import limits

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""
MAPPED_BYTES = 128 * limits.MIB
"""Blocks of more bytes are mapped each by itself, and given back at once."""
KEPT_BYTES = 256 * limits.MIB

assert limits.MESSAGE_BYTES < MAPPED_BYTES < KEPT_BYTES, "messages are not mapped, and several are kept"


def keep() -> None:
    """Tells this process's allocator; another C library than glibc has it its own way.

    A message of 32 MiB took half of its receiver's time in page faults without it.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
