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
class Share:
    """Bytes of a ByteBudget that one large request has while it arrives."""

    size: int = 0


@define(eq=False)
class ByteBudget:
    """`queued.max.request.bytes`: the received bytes of requests that are incomplete or worked on. -1 is without limit.

    Large requests wait while nothing is left, except one: otherwise incomplete requests could hold all and wait for
    each other. So the limit is passed by at most one large request, and by small requests, which never wait.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # the largest `taken` since the last reset
    _beyond: Share | None = None  # of the request that may pass the limit, until it is answered
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    @property
    def is_spent(self) -> bool:
        return 0 <= self.limit <= self.taken

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits for bytes."""
        return bool(self._waiting)

    def take_now(self, size: int) -> None:
        """Count bytes that are here already."""
        self.taken += size
        self.highest = max(self.highest, self.taken)

    async def wait_for_room(self, share: Share) -> None:
        """Wait until the request may receive more. Returns immediately, without a checkpoint, if it may now.

        The caller calls `resize` next, so that the next request that waits has its turn.
        """
        while self.is_spent and self._beyond is not share:
            if self._beyond is None:
                self._beyond = share
                return
            await self._waiting.park()

    def resize(self, share: Share, size: int) -> None:
        """Count that the request holds `size` bytes now."""
        self.take_now(size - share.size)
        share.size = size
        self._wake_next()

    def give_back(self, size: int, share: Share | None = None) -> None:
        """Give back the bytes of a request that is answered or given up, and the share that it had while it arrived."""
        self.taken -= size
        if share is not None and share is self._beyond:
            self._beyond = None
        self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting and (self._beyond is None or not self.is_spent):
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
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

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
        self._reserved -= reserved
        self._add(-reserved)

    def change(self, difference: int) -> None:
        """Take so much more for what was read, or give it back."""
        self._add(difference)
        self.highest = max(self.highest, self.read)

    @property
    def is_waited_for(self) -> bool:
        """Whether an answer waits for bytes."""
        return bool(self._waiting)

    async def wait_for_room(self) -> None:
        """Wait until something is left: for large answers that cannot become smaller."""
        while 0 <= self.limit <= self.taken:
            await self._waiting.park()

    def _add(self, difference: int) -> None:
        self.taken += difference
        if difference < 0 and self._waiting and not 0 <= self.limit <= self.taken:
            self._waiting.unpark_all()


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
