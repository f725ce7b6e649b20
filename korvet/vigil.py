"""Staying awake for a moment after an answer.

A client that asks for one thing at a time sends its next request some 50 us after it has the last answer. For the
event loop to go to sleep until then, and to be woken again, takes about as long, and as much processor time as looking
out for it: so while requests come that fast, they are waited for awake. One record is acknowledged in half to three
quarters of the time. Where requests come more slowly nothing is different.

An answer that waited counts only where records are in this process: to be ended by the next append is what a long poll
waits for. Whoever waits for Redis has others to leave the processor to.
"""

from __future__ import annotations

from time import monotonic

import trio
from attrs import define, field

AWAKE_S = 0.0001
# A request that comes so soon after the last answer is from a client that will be as quick again.
QUICK_S = 0.0003


@define(eq=False)
class Vigil:
    """The event loop does not sleep while requests follow answers quickly, and for `AWAKE_S` after the last.

    Times are those of `monotonic`.
    """

    counts_those_that_waited: bool = False
    _answered: float = 0.0
    _until: float = 0.0
    _is_called_for: trio.Event = field(factory=trio.Event)

    def answered(self, asked: float, now: float, *, has_waited: bool) -> None:
        """There was an answer just now, to a request that came at `asked`."""
        if has_waited:
            if not self.counts_those_that_waited:
                return
            asked = now
        if asked - self._answered < QUICK_S:
            self._until = now + AWAKE_S
            self._is_called_for.set()
        self._answered = now

    async def keep(self) -> None:
        """Be there to be run, whenever it is called for. Never returns."""
        while True:
            await self._is_called_for.wait()
            while monotonic() < self._until:
                await trio.lowlevel.checkpoint()
            self._is_called_for = trio.Event()
