"""Bytes to and from one client, without copying them.

`trio.SocketStream` needs two rounds of the scheduler where one is enough, and can neither receive into a buffer nor
send a list of buffers. So a transport uses the socket directly, and a connection waits for it only when it must.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import trio
from attrs import define, field

from korvet.protocol.buffers import Buffer
from korvet.server.readiness import Readiness

# The system's limit of buffers in one sendmsg (IOV_MAX).
BUFFERS_AT_ONCE: Final = 1024
# Limit of bytes copied to or from a socket in one call, which takes 0.25 ms. Socket buffers may hold ten times as much.
BYTES_AT_ONCE: Final = 512 * 1024


class Transport(ABC):
    """A client's connection as bytes. Methods that are not asynchronous never block. Errors are OSErrors."""

    #: The file descriptor on which poll(2) reports that the client has disconnected.
    number: int
    #: The name of the client's principal by its certificate, after the handshake. None if it has none.
    username: str | None = None

    async def handshake(self) -> None:  # noqa: B027  plain connections have none
        """Prepare the connection, before anything is received or sent. Raises ProtocolError and OSError."""

    @abstractmethod
    def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Receive bytes into the beginning of `buffer` and return their number, 0 if the client has closed its side.

        Raises BlockingIOError if no bytes have arrived.
        """

    @abstractmethod
    def has_arrived(self) -> bool:
        """Return True if `receive_into` is worth a call."""

    @abstractmethod
    def send(self, buffers: list[Buffer], first: int) -> int:
        """Send some of the bytes of the buffers from index `first`, and return their number."""

    @abstractmethod
    async def wait_readable(self) -> None:
        """Wait until `receive_into` is worth another call."""

    async def serve_readable(self, serve: Callable[[], bool]) -> None:
        """Call `serve` whenever `receive_into` is worth a call, until it returns False. Raises what `serve` raises."""
        while True:
            await self.wait_readable()
            if not serve():
                return

    @abstractmethod
    async def wait_writable(self) -> None:
        """Wait until `send` is worth another call."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


@define(eq=False)
class PlainTransport(Transport):
    """A non-blocking TCP socket."""

    sock: socket.socket
    readiness: Readiness | None = None
    number: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.number = self.sock.fileno()

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        return self.sock.recv_into(buffer, min(len(buffer), BYTES_AT_ONCE))

    def has_arrived(self) -> bool:
        return is_readable(self.sock)

    def send(self, buffers: list[Buffer], first: int) -> int:
        try:
            if len(buffers) == 1 and len(buffers[0]) <= BYTES_AT_ONCE:
                return self.sock.send(buffers[0])
            return self.sock.sendmsg(portion(buffers, first))
        except BlockingIOError:
            return 0

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self.number)

    async def serve_readable(self, serve: Callable[[], bool]) -> None:
        if self.readiness is None:
            await super().serve_readable(serve)
        else:
            await self.readiness.serve(self.number, serve)

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self.number)

    def close(self) -> None:
        if self.readiness is not None:
            self.readiness.forget(self.number)
        self.sock.close()


def is_readable(sock: socket.socket) -> bool:
    """Return True if bytes have arrived at the socket, encrypted or not, or if the connection is over."""
    try:
        socket.socket.recv(sock, 1, socket.MSG_PEEK)  # not the method of SSLSocket, which refuses to peek
    except BlockingIOError:
        return False
    except OSError:
        pass  # the connection is lost, which receive_into reports
    return True


def portion(buffers: list[Buffer], first: int) -> list[Buffer]:
    """Return the buffers from `first` that are sent in one call, the last one possibly in part."""
    end, room = first, BYTES_AT_ONCE
    while end < len(buffers) and end < first + BUFFERS_AT_ONCE and room > 0:
        room -= len(buffers[end])
        end += 1
    if room >= 0:
        return buffers[first:end]
    return [*buffers[first : end - 1], memoryview(buffers[end - 1])[:room]]
