"""Limits for all connections together: bytes of requests, bytes of responses, and the number of connections.

A request that exceeds the limit waits, and waiting requests continue in the order of arrival. The broker does not read
from their clients in the meantime, so that these cannot send more. Responses become smaller instead, and only large
ones that cannot become smaller wait, because a client may never read the responses that hold the bytes.
"""

from __future__ import annotations

import trio
from attrs import define, field

SMALLEST_ANSWER_BYTES = 64 * 1024


def share_of(limit: int, processes: int) -> int:
    """Return one process's share, rounded up, of a limit for all processes; -1 (unlimited) stays -1."""
    return -(-limit // processes) if limit >= 0 else limit


@define(eq=False)
class Reservation:
    """Bytes of a ByteBudget that one large request holds while it arrives."""

    size: int = 0


@define(eq=False)
class ByteBudget:
    """`queued.max.request.bytes`: the received bytes of requests that are incomplete or in flight. -1 is unlimited.

    While no bytes are left, large requests wait, except one. Otherwise incomplete requests could hold all bytes and
    wait for each other. So only one large request, and small requests, which never wait, can exceed the limit.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # the largest `taken` since the last reset
    _beyond: Reservation | None = None  # of the request that may exceed the limit, until it is answered
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    @property
    def is_spent(self) -> bool:
        return 0 <= self.limit <= self.taken

    @property
    def is_waited_for(self) -> bool:
        """True if a request waits for bytes."""
        return bool(self._waiting)

    def take_now(self, size: int) -> None:
        """Count bytes that were already received."""
        self.taken += size
        if self.taken > self.highest:  # noqa: PLR1730  max() would be a call for each request
            self.highest = self.taken

    async def wait_for_room(self, reservation: Reservation) -> None:
        """Wait until the request may receive more. Return immediately, without a checkpoint, if it may now.

        The caller must call `resize` next, which wakes the next request that waits.
        """
        while self.is_spent and self._beyond is not reservation:
            if self._beyond is None:
                self._beyond = reservation
                return
            await self._waiting.park()

    def resize(self, reservation: Reservation, size: int) -> None:
        """Set the bytes that the request holds to `size`."""
        self.take_now(size - reservation.size)
        reservation.size = size
        self._wake_next()

    def give_back(self, size: int, reservation: Reservation | None = None) -> None:
        """Release the bytes of a request that was answered or abandoned, and its reservation."""
        self.taken -= size
        if reservation is not None and reservation is self._beyond:
            self._beyond = None
        if self.limit >= 0 and self._waiting:
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting and (self._beyond is None or not self.is_spent):
            self._waiting.unpark()


@define(eq=False)
class AnswerBudget:
    """`queued.max.response.bytes`: the bytes of records in responses that are read or sent. -1 is unlimited.

    A response may take a quarter of the remaining bytes, so that many slow clients leave some for the others. It may
    always take SMALLEST_ANSWER_BYTES, so that consumers make progress. A handler reserves bytes before it reads
    records, then releases them and takes the number of bytes that it has read.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # the largest `read` since the last reset
    _reserved: int = 0
    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    @property
    def read(self) -> int:
        """Bytes of records that were read. Reserved bytes do not count, as they may never be used."""
        return self.taken - self._reserved

    def reserve(self, wanted: int) -> int:
        """Take up to `wanted` bytes, and return their number."""
        if self.limit >= 0:
            wanted = min(wanted, max((self.limit - self.taken) // 4, SMALLEST_ANSWER_BYTES))
        self.taken += wanted
        self._reserved += wanted
        return wanted

    def release(self, reserved: int) -> None:
        """Release the bytes that `reserve` took."""
        self._reserved -= reserved
        self._add(-reserved)

    def change(self, difference: int) -> None:
        """Take `difference` more bytes for records that were read, or release bytes if it is negative."""
        self._add(difference)
        self.highest = max(self.highest, self.taken - self._reserved)

    def exchange(self, reserved: int, difference: int) -> None:
        """Release the bytes that `reserve` took, and take `difference` more as `change` does."""
        self._reserved -= reserved
        self._add(difference - reserved)
        self.highest = max(self.highest, self.taken - self._reserved)

    @property
    def is_waited_for(self) -> bool:
        """True if a response waits for bytes."""
        return bool(self._waiting)

    async def wait_for_room(self) -> None:
        """Wait until bytes are left. For large responses that cannot become smaller."""
        while 0 <= self.limit <= self.taken:
            await self._waiting.park()

    def _add(self, difference: int) -> None:
        self.taken += difference
        if difference < 0 and self._waiting and not 0 <= self.limit <= self.taken:
            self._waiting.unpark_all()


@define(eq=False)
class ConnectionLimit:
    """`max.connections`, of the broker or of a listener: further clients wait in the listen backlog."""

    limit: int
    open: int = 0
    _below: trio.Event = field(factory=trio.Event)

    @property
    def is_reached(self) -> bool:
        return self.open >= self.limit

    async def wait_below(self) -> None:
        """Wait until one more connection may be accepted."""
        while self.is_reached:
            await self._below.wait()

    def opened(self) -> None:
        self.open += 1

    def closed(self) -> None:
        self.open -= 1
        self._notify()

    def change(self, limit: int) -> None:
        """Set another limit."""
        self.limit = limit
        self._notify()

    def _notify(self) -> None:
        self._below.set()
        self._below = trio.Event()
