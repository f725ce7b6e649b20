"""A client's connection without a socket."""

from __future__ import annotations

from collections import deque

import trio
from attrs import define, field

from korvet.protocol.buffers import Buffer
from korvet.server.transport import Transport


@define(eq=False)
class FakeTransport(Transport):
    """A transport whose client is the test: bytes to receive, and the bytes that were sent."""

    number: int = -1
    sent: bytearray = field(factory=bytearray)
    is_closed: bool = False
    room: float = float("inf")  # bytes that the client reads before it stops reading
    _arrived: deque[bytes] = field(factory=deque)  # b"" means that the client has closed its side
    _changed: trio.Event = field(factory=trio.Event)

    def arrive(self, *data: bytes) -> None:
        """Deliver bytes, in as many calls of `receive_into`."""
        self._arrived.extend(data)
        self._notify()

    def read(self, count: float) -> None:
        """Let the client read so many bytes more."""
        self.room += count
        self._notify()

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        if not self._arrived:
            raise BlockingIOError
        data = self._arrived.popleft()
        if rest := data[len(buffer) :]:
            self._arrived.appendleft(rest)
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        return count

    def has_arrived(self) -> bool:
        return bool(self._arrived)

    def send(self, buffers: list[Buffer], first: int) -> int:
        data = b"".join(buffers[first:])[: int(min(self.room, 2**31))]
        self.room -= len(data)
        self.sent += data
        return len(data)

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            await self._changed.wait()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while self.room <= 0:
            await self._changed.wait()

    def close(self) -> None:
        self.is_closed = True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
