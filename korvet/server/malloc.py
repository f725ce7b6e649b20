"""Malloc trimming: return the memory of large requests and responses to the system after the load has ended.

By default glibc trims free memory at the end of its heap inside the call to free. For 50 MB that takes 5 ms, during
which no request is served, and the next request has to allocate the memory again. Free memory in the middle of the
heap is never returned. So the broker disables this trimming (`keep_what_is_free`), and calls malloc_trim in a thread
when much less memory is in use than before (`Heap`). Allocating every large buffer with mmap would have the same
effect, but doubles the time of a large produce. Without glibc, this module does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from attrs import define

# Trimming takes some tenths of a millisecond per megabyte, and blocks all allocations meanwhile.
WORTH_BYTES = 2 * 1024 * 1024
# M_TRIM_THRESHOLD: free memory that glibc keeps at the end of its heap. M_MMAP_THRESHOLD: size from which glibc
# allocates a buffer with mmap; this is the largest value that glibc accepts.
KEPT_BYTES = 256 * 1024 * 1024
MAPPED_FROM_BYTES = 32 * 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@define
class Heap:
    """Trims memory after a peak. It stores the largest number of bytes in use since the last trim."""

    trim: Callable[[], object] | None = None
    _highest: int = 0

    async def look(self, highest: int) -> None:
        """Trim if `highest`, the peak number of bytes in use since the last call, is much less than before.

        "Much" means at least WORTH_BYTES less, and at most half.
        """
        self._highest = max(self._highest, highest)
        if self._highest - highest < WORTH_BYTES or 2 * highest > self._highest:
            return
        self._highest = highest
        await trio.to_thread.run_sync(self.trim or trim)


def keep_what_is_free() -> None:
    """Configure glibc to keep freed memory for later allocations."""
    mallopt = c_function("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim() -> None:
    """Return all free pages of glibc's heap to the system."""
    malloc_trim = c_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def c_function(name: str) -> Any:
    """Return a function of the C library, or None if the library does not have it."""
    import ctypes  # noqa: PLC0415  not needed before the broker serves

    return getattr(ctypes.CDLL(None), name, None)
