"""Calls that no task waits for, and their time limits.

One task looks at all limits twice a second: entering a cancel scope with a deadline takes about 10 us, a tenth of a
small Produce, and these limits are 5 seconds or more.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import define, field

from korvet.concurrency.background import start_unless_ended
from korvet.storage.redis.client.connection import Pending
from korvet.storage.redis.client.replies import Reply

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


@define(eq=False)
class StartedCall:
    """A call that was sent to Redis: its caller to notify, and its time limit."""

    limits: TimeLimits
    _call: Callable[[], None] | None = field(default=None, init=False)  # notifies the caller
    _is_answered: bool = field(default=False, init=False)
    _replies: Reply = field(default=None, init=False)

    def expire(self) -> None:
        """End the wait for a server that does not answer."""
        raise NotImplementedError

    def answer(self, pending: Pending | None = None) -> None:
        """Notify the caller, once. `pending` has the replies if they are all that was waited for."""
        self.limits.remove(self.expire)
        if pending is not None:
            self._replies = pending.reply
        self._is_answered = True
        call, self._call = self._call, None
        if call is not None:
            call()

    def notify(self, call: Callable[[], None]) -> bool:
        """See `PendingResults.notify`."""
        if self._is_answered:
            return False
        self._call = call
        return True

    async def answered(self) -> None:
        """Wait until there is an answer. Abandon the call if the wait is cancelled."""
        event = trio.Event()
        if self.notify(event.set):
            try:
                await event.wait()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """See `PendingResults.abandon`."""
        self._call = None
        self.limits.remove(self.expire)
