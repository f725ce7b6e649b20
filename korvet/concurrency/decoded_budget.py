"""A budget of memory for decompressed records, which all connections share."""

from __future__ import annotations

from collections import deque

import trio
from attrs import define, field, frozen

# Bytes of memory for decompressed records, and for data built from them, until they are stored. Compressed records may
# be a thousand times smaller.
DECODED_BYTES = 48 * 1024 * 1024


@define(eq=False)
class DecodedReservation:
    """The bytes of a DecodedBudget that one request or maintenance task has taken. `end` returns them."""

    budget: DecodedBudget = field(factory=lambda: DECODED)
    size: int = 0

    async def take(self, size: int) -> None:
        """Wait until `size` more bytes may be taken."""
        await self.budget.take(self, size)

    def hold(self, size: int) -> None:
        """Set the reservation's size to `size` bytes, without waiting."""
        self.budget.resize(self, size)

    def end(self) -> None:
        if self.size:
            self.hold(0)


@frozen(eq=False)
class Waiting:
    """A reservation that waits for bytes."""

    reservation: DecodedReservation
    size: int
    is_granted: trio.Event = field(factory=trio.Event)


@define(eq=False)
class DecodedBudget:
    """Bytes of decompressed records, which reservations take in the order of their requests.

    If all bytes belong to reservations that wait, the first of them may exceed the limit. Otherwise all would wait for
    ever.
    """

    limit: int
    taken: int = 0
    highest: int = 0  # the largest `taken` since the last reset
    _waiting: deque[Waiting] = field(factory=deque)
    _taken_by_waiting: int = 0

    async def take(self, reservation: DecodedReservation, size: int) -> None:
        """Wait for bytes. Return immediately, without a checkpoint, if there are enough.

        Taking 0 bytes waits while the limit is exceeded, but not behind reservations that already wait.
        """
        if self._has_room(size) and not (size and self._waiting):
            self.resize(reservation, reservation.size + size)
            return
        waiting = Waiting(reservation, size)
        self._waiting.append(waiting)
        self._taken_by_waiting += reservation.size
        self._grant_first()
        try:
            await waiting.is_granted.wait()
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._taken_by_waiting -= reservation.size
                self._grant_first()
            raise

    def resize(self, reservation: DecodedReservation, size: int) -> None:
        """Set the size of a reservation that does not wait."""
        self._add(size - reservation.size)
        reservation.size = size
        self._grant_first()

    def _add(self, size: int) -> None:
        self.taken += size
        self.highest = max(self.highest, self.taken)

    def _has_room(self, size: int) -> bool:
        return self.taken + size <= self.limit

    def _grant_first(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if not self._has_room(first.size) and self.taken > self._taken_by_waiting:
                return
            self._waiting.popleft()
            self._taken_by_waiting -= first.reservation.size
            first.reservation.size += first.size
            self._add(first.size)
            first.is_granted.set()


DECODED: DecodedBudget = DecodedBudget(DECODED_BYTES)
