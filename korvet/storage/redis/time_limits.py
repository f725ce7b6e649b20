"""Time limits of calls that no task waits for.

One task looks at all of them twice a second: entering a cancel scope with a deadline takes about 10 us, a tenth of a
small Produce, and these limits are 25 seconds or more.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import define, field

from korvet.concurrency.background import start_unless_ended

INTERVAL_S = 0.5


@define(eq=False)
class TimeLimits:
    """Functions to call at a time on Trio's clock, or up to `INTERVAL_S` later, unless they are removed before."""

    nursery: trio.Nursery
    _deadlines: dict[Callable[[], None], float] = field(factory=dict)
    _is_watched: bool = False

    def add(self, expire: Callable[[], None], deadline: float) -> bool:
        """Call `expire` at the deadline. Return False if the storage is closing, and so no task will."""
        if not self._is_watched and not start_unless_ended(self.nursery, self._watch):
            return False
        self._is_watched = True
        self._deadlines[expire] = deadline
        return True

    def remove(self, expire: Callable[[], None]) -> None:
        self._deadlines.pop(expire, None)

    async def _watch(self) -> None:
        """Call what is due, and end once there is nothing to wait for."""
        try:
            while self._deadlines:
                await trio.sleep(INTERVAL_S)
                now = trio.current_time()
                for expire in [each for each, deadline in self._deadlines.items() if deadline <= now]:
                    self.remove(expire)
                    expire()
        finally:
            self._is_watched = False
