"""Memory that large requests and answers took, given back to the system once they are gone.

glibc keeps what was freed in the middle of its heap, so a broker that has sent a gigabyte to slow consumers would go on
holding it. Having every large buffer mapped by itself would do as well, and costs twice the time a large produce takes
now (1.2 ms of processor time a megabyte become 2.7). Elsewhere than with glibc nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import define

# Giving back takes some tenths of a millisecond a megabyte, during which nobody gets memory; it is done once a second
# at most.
WORTH_BYTES = 2 * 1024 * 1024


@define
class Heap:
    """Looked after now and then; remembers how much was in use."""

    trim: Callable[[], object] | None = None
    _highest: int = 0

    async def look(self, highest: int, taken: int) -> None:
        """Give memory back, if since the last time much more was in use (`highest`) than is now (`taken`)."""
        self._highest = max(self._highest, highest)
        if self._highest - taken < WORTH_BYTES or 2 * taken > self._highest:
            return
        self._highest = taken
        await trio.to_thread.run_sync(self.trim or trim)


def trim() -> None:
    """Have glibc give back whole pages that are free, wherever they are."""
    import ctypes  # noqa: PLC0415  most brokers never need it

    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(0)
