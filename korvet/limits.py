"""What all connections together may take: bytes of requests and of answers, and their own number.

Whoever asks for more than there is waits, and is served in the order of asking. Not reading is what keeps a client
from sending more. With answers it is different, since one that a client is slow to read may take for ever: they become
smaller, and nobody waits.
"""

from __future__ import annotations

import trio
from attrs import define, field

SMALLEST_ANSWER_BYTES = 64 * 1024


@define(eq=False)
class ByteBudget:
    """`queued.max.request.bytes`: the bytes of requests being received or worked on. -1 is without limit.

    As long as anything is left a request gets what it needs, even more than is left: a request larger than the
    whole budget must be served, too. So the limit is passed by at most one request.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # of `taken`, since somebody set it back
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    @property
    def is_spent(self) -> bool:
        return 0 <= self.limit <= self.taken

    def take_now(self, size: int) -> None:
        """Count bytes that are here already."""
        self.taken += size
        self.highest = max(self.highest, self.taken)

    async def take(self, size: int) -> None:
        """Wait until something is left, and take `size`. Returns at once, without a checkpoint, if it can."""
        while self.is_spent:
            await self._waiting.park()
        self.take_now(size)
        self._wake_next()

    def give_back(self, size: int) -> None:
        self.taken -= size
        self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting and not self.is_spent:
            self._waiting.unpark()


@define(eq=False)
class AnswerBudget:
    """`queued.max.response.bytes`: records in answers that are being read or sent. -1 is without limit.

    An answer may take a quarter of what is left, so that many slow clients cannot leave nothing for the others; and
    something always, so that consumers get on. Whoever has reserved that gives it back, and takes what it has read.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # of `read`, as above
    _reserved: int = 0

    @property
    def read(self) -> int:
        """What is taken by records that are here; what is reserved need never be."""
        return self.taken - self._reserved

    def reserve(self, wanted: int) -> int:
        """Take up to `wanted` bytes; how many they are."""
        if self.limit >= 0:
            wanted = min(wanted, max((self.limit - self.taken) // 4, SMALLEST_ANSWER_BYTES))
        self.taken += wanted
        self._reserved += wanted
        return wanted

    def release(self, reserved: int) -> None:
        """Give back what `reserve` took."""
        self.taken -= reserved
        self._reserved -= reserved

    def change(self, difference: int) -> None:
        """Take so much more for what was read, or give it back."""
        self.taken += difference
        self.highest = max(self.highest, self.read)


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
