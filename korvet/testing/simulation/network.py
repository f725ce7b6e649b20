"""Connections in memory between clients and simulated brokers, with delays, splits, losses and partitions.

A connection is two directions. A direction keeps the bytes that were sent, with the times of their arrival, until the
receiver takes them; it accepts WINDOW bytes at most. There are no tasks: the receiver waits for the arrival.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from math import inf
from random import Random

import trio
from attrs import define, field

from korvet.protocol.buffers import Buffer
from korvet.server.transport import Transport
from korvet.testing.simulation.determinism import Alarm, VirtualClock

# Bytes that a direction keeps. Senders wait for room.
WINDOW = 1 << 18
DELAY_S = 0.02
# Of the segments, one in so many arrives in two parts.
SPLIT_ONE_IN = 30


@define(eq=False)
class Direction:
    """The bytes from one side of a connection to the other."""

    network: Network
    broker: str
    is_reset: bool = False
    lag_s: float = 0.0  # of the segments that are sent from now on, besides other delays
    _flying: deque[tuple[float, Buffer]] = field(factory=deque)  # times of arrival; empty bytes are the end
    _size: int = 0
    _last_s: float = 0.0
    _arrival: Alarm = field(init=False)  # wakes the receiver
    _taken: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._arrival = Alarm(self.network.clock)

    @property
    def room(self) -> int:
        """The number of bytes that may be sent now. Raises OSError."""
        self._check()
        return WINDOW - self._size

    def put(self, data: Buffer) -> None:
        """Send bytes, or the end if there are none."""
        chance = self.network.chance
        middle = chance.randrange(len(data)) if data and not chance.randrange(SPLIT_ONE_IN) else 0
        for part in (data[:middle], data[middle:]) if middle else (data,):
            delay_s = chance.random() * self.network.delays_s.get(self.broker, DELAY_S)
            self._last_s = max(self._last_s, self.network.clock.current_time() + delay_s + self.lag_s)
            self._flying.append((self._last_s, bytes(part)))
            self._size += len(part)
        self.wake()

    def has_arrived(self) -> bool:
        """Return True if bytes or the end can be taken, or the connection is lost."""
        return self._arrives_at() <= self.network.clock.current_time()

    def take(self, limit: int) -> Buffer | None:
        """Return bytes that have arrived, none of them at the end, or None if nothing has arrived. Raises OSError."""
        self._check()
        if not self.has_arrived():
            return None
        due_s, data = self._flying[0]
        if len(data) > limit:
            self._flying[0] = due_s, data[limit:]
            data = data[:limit]
        elif data:
            self._flying.popleft()
        if self._size >= WINDOW:
            self._wake_sender()
        self._size -= len(data)
        return data

    async def wait_arrived(self) -> None:
        """Wait until `has_arrived`."""
        while not self.has_arrived():
            await self._arrival.wait_until(self._arrives_at())

    async def wait_room(self) -> None:
        """Wait until there is room, or the connection is lost."""
        while self._size >= WINDOW and not self.is_reset:
            await self._taken.wait()

    def reset(self) -> None:
        """Lose the connection, with the bytes in it."""
        self.is_reset = True
        self.wake()
        self._wake_sender()

    def wake(self) -> None:
        """Let the receiver wait for the next arrival, which may have changed."""
        self._arrival.set(self._arrives_at())

    def _wake_sender(self) -> None:
        self._taken.set()
        self._taken = trio.Event()

    def _check(self) -> None:
        if self.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset")

    def _arrives_at(self) -> float:
        """Return when the next bytes can be taken; infinity if there are none, or while the broker is cut off."""
        if self.is_reset:
            return -inf
        if not self._flying or self.broker in self.network.cut_off:
            return inf
        return self._flying[0][0]


@define(eq=False)
class MemoryTransport(Transport):
    """The broker's side of a connection."""

    incoming: Direction
    outgoing: Direction
    number: int = -1  # there is no socket to poll
    username: str | None = None

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        data = self.incoming.take(len(buffer))
        if data is None:
            raise BlockingIOError
        buffer[: len(data)] = data
        return len(data)

    def has_arrived(self) -> bool:
        return self.incoming.has_arrived()

    def send(self, buffers: list[Buffer], first: int) -> int:
        room = self.outgoing.room
        if room <= 0:
            return 0
        data = b"".join(buffers[first:])[:room]
        self.outgoing.put(data)
        return len(data)

    async def wait_readable(self) -> None:
        await self.incoming.wait_arrived()

    async def wait_writable(self) -> None:
        await self.outgoing.wait_room()

    def close(self) -> None:
        self.outgoing.put(b"")
        self.incoming.reset()


@define(eq=False)
class MemoryStream(trio.abc.Stream):
    """The client's side of a connection. Raises trio.BrokenResourceError after it is lost."""

    incoming: Direction
    outgoing: Direction
    _closed: Callable[[], None]
    _is_closed: bool = False

    async def send_all(self, data: Buffer) -> None:
        try:
            while data:
                await self.outgoing.wait_room()
                room = self.outgoing.room
                self.outgoing.put(data[:room])
                data = data[room:]
        except OSError as error:
            raise trio.BrokenResourceError from error

    def lag(self, seconds: float) -> None:
        """Let what is sent from now on arrive that much later."""
        self.outgoing.lag_s = seconds

    async def wait_send_all_might_not_block(self) -> None:
        await self.outgoing.wait_room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await self.incoming.wait_arrived()
        try:
            data = self.incoming.take(WINDOW if max_bytes is None else max_bytes)
        except OSError as error:
            raise trio.BrokenResourceError from error
        return bytes(data or b"")

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.outgoing.put(b"")
            self.incoming.reset()
            self._closed()
        await trio.lowlevel.checkpoint()


@define(eq=False)
class Network:
    """All connections, and the faults of the way between clients and each broker. Brokers are named."""

    chance: Random
    clock: VirtualClock
    #: Accepts a connection to the broker of that name, and returns what to call when the client closes it.
    #: Raises ConnectionRefusedError.
    accept: Callable[[str, MemoryTransport, str], Callable[[], None]]
    cut_off: set[str] = field(factory=set)
    delays_s: dict[str, float] = field(factory=dict)  # the longest delay of a segment, if it is not DELAY_S
    _open: dict[MemoryStream, str] = field(factory=dict)
    _healed: trio.Event = field(factory=trio.Event)

    async def connect(self, broker: str, client: str) -> MemoryStream:
        """Return a connection. Waits while the broker is cut off. Raises ConnectionRefusedError."""
        await trio.sleep(self.chance.random() * DELAY_S)
        while broker in self.cut_off:
            await self._healed.wait()
        requests, responses = Direction(self, broker), Direction(self, broker)
        ended = self.accept(broker, MemoryTransport(requests, responses), client)

        def closed() -> None:
            del self._open[stream]
            ended()

        stream = MemoryStream(responses, requests, closed)
        self._open[stream] = broker
        return stream

    def broker_at(self, host: str, _port: int) -> str:
        return host

    def cut(self, broker: str) -> None:
        """Deliver nothing to or from the broker until `heal`."""
        self.cut_off.add(broker)

    def heal(self, broker: str) -> None:
        """Deliver what was sent in the meantime, too."""
        self.cut_off.discard(broker)
        for direction in self._directions(broker):
            direction.wake()
        self._healed.set()
        self._healed = trio.Event()

    def reset(self, broker: str) -> None:
        """Lose all connections of a broker."""
        for direction in self._directions(broker):
            direction.reset()

    def _directions(self, broker: str) -> list[Direction]:
        streams = [stream for stream, other in self._open.items() if other == broker]
        return [each for stream in streams for each in (stream.incoming, stream.outgoing)]
