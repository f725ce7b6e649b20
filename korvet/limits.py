"""What all connections together may take: bytes of requests, and their own number.

Whoever asks for more than there is waits, and is served in the order of asking. Not reading is what keeps a client
from sending more.
"""

from __future__ import annotations

import trio
from attrs import define, field


@define(eq=False)
class ByteBudget:
    """`queued.max.request.bytes`: the bytes of requests being received or worked on. -1 is without limit.

    As long as anything is left a request gets what it needs, even more than is left: a request larger than the
    whole budget must be served, too. So the limit is passed by at most one request.
    """

    limit: int
    taken: int = 0
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    @property
    def is_spent(self) -> bool:
        return 0 <= self.limit <= self.taken

    def take_now(self, size: int) -> None:
        """Count bytes that are here already."""
        self.taken += size

    async def take(self, size: int) -> None:
        """Wait until something is left, and take `size`. Returns at once, without a checkpoint, if it can."""
        while self.is_spent:
            await self._waiting.park()
        self.taken += size
        self._wake_next()

    def give_back(self, size: int) -> None:
        self.taken -= size
        self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting and not self.is_spent:
            self._waiting.unpark()


@define(eq=False)
class ConnectionLimit:
    """`max.connections`: further clients wait in the listen backlog."""

    limit: int
    open: int = 0
    _below: trio.Event = field(factory=trio.Event)

    async def wait_below(self) -> None:
        """Return when one more connection may be accepted."""
        while self.open >= self.limit:
            await self._below.wait()

    def opened(self) -> None:
        self.open += 1

    def closed(self) -> None:
        self.open -= 1
        self._below.set()
        self._below = trio.Event()
