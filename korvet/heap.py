"""Memory that large requests and answers took, given back to the system once they are gone.

glibc gives back what becomes free at the end of its heap, in the midst of whatever frees it: of 50 MB that takes 5 ms,
during which nobody is served, and the next request takes them anew. What is free in the middle it keeps for ever. So it
is told to keep all of it (`keep_what_is_free`), and where much less is in use than there was, it is told to give back
what it can (`Heap`), in a thread, when the load that needed it is over. Having every large buffer mapped by itself
would do as well, and costs twice the time a large produce takes. Elsewhere than with glibc nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from attrs import define

# Giving back takes some tenths of a millisecond a megabyte, during which nobody gets memory.
WORTH_BYTES = 2 * 1024 * 1024
# What glibc keeps at the end of its heap, and the size from which on it maps a buffer by itself: the largest it takes.
KEPT_BYTES = 256 * 1024 * 1024
MAPPED_FROM_BYTES = 32 * 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@define
class Heap:
    """Looked after now and then; remembers how much was in use since memory was last given back."""

    trim: Callable[[], object] | None = None
    _highest: int = 0

    async def look(self, highest: int) -> None:
        """Give memory back, if since the last look at most `highest` bytes were in use, and much more before."""
        self._highest = max(self._highest, highest)
        if self._highest - highest < WORTH_BYTES or 2 * highest > self._highest:
            return
        self._highest = highest
        await trio.to_thread.run_sync(self.trim or trim)


def keep_what_is_free() -> None:
    """Have glibc keep what is freed, to be used again."""
    mallopt = c_function("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim() -> None:
    """Have glibc give back whole pages that are free, wherever they are."""
    malloc_trim = c_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def c_function(name: str) -> Any:
    """A function of the C library; None where it does not have it."""
    import ctypes  # noqa: PLC0415  before the broker serves, nobody needs it

    return getattr(ctypes.CDLL(None), name, None)
