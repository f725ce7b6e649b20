"""Receive a client's requests: bytes from its transport, memory from the budget of all connections."""

from __future__ import annotations

from time import monotonic

from attrs import define, field

from korvet.broker.limits import ByteBudget, Reservation
from korvet.protocol.errors import ProtocolError
from korvet.protocol.frames import LARGE_FRAME, FrameReader
from korvet.server.patience import Progress
from korvet.server.transport import Transport

RECEIVE_BYTES = 64 * 1024


@define(eq=False)
class RequestMemory:
    """Memory for requests, which all connections of a server share."""

    budget: ByteBudget
    scratch: bytearray = field(factory=lambda: bytearray(RECEIVE_BYTES))  # to receive into, between two waits


@define(eq=False)
class Receiver:
    """Receives the bytes of one connection's requests into `frames`."""

    transport: Transport
    frames: FrameReader
    memory: RequestMemory
    progress: Progress
    reservation: Reservation | None = None  # of a request that has arrived in part
    queued_s: float = 0.0  # seconds for which that request has waited for memory
    is_over: bool = False  # the client has closed the connection
    arriving_since: float = 0.0  # since when it waits for the rest of that request, on `monotonic`

    @property
    def is_amid_large(self) -> bool:
        """True if a large request has arrived in part. Raises ProtocolError."""
        size = self.frames.pending_frame_size
        return size is not None and size > LARGE_FRAME

    async def receive_more(self) -> None:
        """Receive bytes after part of a request: count that part, and wait for memory if the request is large.

        Raises ProtocolError and OSError.
        """
        budget = self.memory.budget
        if not self.arriving_since:
            self.arriving_since = monotonic()
        reservation = self.reservation = self.reservation or Reservation()
        budget.resize(reservation, self.frames.held_bytes)
        size = self.frames.pending_frame_size
        await self.transport.wait_readable()
        if size is None or size <= LARGE_FRAME:
            self.receive()
            return
        await self._wait_for_room(reservation)
        try:
            self.frames.allow_frame()
            self.receive()
        finally:
            budget.resize(reservation, self.frames.held_bytes)

    async def _wait_for_room(self, reservation: Reservation) -> None:
        began = monotonic()
        self.progress.is_waiting_for_room = True
        try:
            await self.memory.budget.wait_for_room(reservation)
        finally:
            self.progress.is_waiting_for_room = False
        self.queued_s += monotonic() - began

    def receive(self) -> None:
        """Receive what has arrived, if anything has. Raises ProtocolError and OSError."""
        frames = self.frames
        buffer = frames.frame_buffer()
        try:
            if buffer is not None:
                count = self.transport.receive_into(buffer)
                frames.buffer_filled(count)
            else:
                count = self.transport.receive_into(self.memory.scratch)
                frames.receive_data(memoryview(self.memory.scratch)[:count])
        except BlockingIOError:
            return
        if not count:
            self.is_over = True
            if not frames.idle:
                raise ProtocolError("it went in the middle of a request")

    def take(self, reservation: Reservation, frame_size: int) -> None:
        """Take the bytes of a complete request that arrived in parts, which include those of its reservation."""
        self.memory.budget.take_now(frame_size - reservation.size)
        self.reservation = None

    def close(self) -> None:
        """Release the bytes of a request that has arrived in part."""
        if self.reservation is not None:
            self.memory.budget.give_back(self.reservation.size, self.reservation)
