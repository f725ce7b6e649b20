"""Send and receive bytes over a plain socket, or through TLS.

A plain socket is used directly, without `trio.SocketStream`: buffers are sent as a list and received in place, and
operations that need not wait avoid another scheduler tick (a tenth of a small command's cost).
"""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence

import trio

from korvet.protocol.buffers import Buffer, join_small
from korvet.storage.redis.client.address import RedisAddress

JOIN_BYTES = 4096  # smaller buffers are joined with their neighbours before they are sent
SENDMSG_BUFFERS = 512  # the kernel takes 1,024 in one call

# A megabyte batch should be sent, and a megabyte of replies received, in few iterations of the event loop.
# The kernel reduces this to its own limit.
SOCKET_BUFFER_BYTES = 4 << 20


class Transport(ABC):
    """An open connection. Failures are OSError, trio.BrokenResourceError or trio.ClosedResourceError."""

    @abstractmethod
    async def receive_into(self, buffer: bytearray) -> int:
        """Write received bytes to the beginning of the buffer; return their number, 0 at the end."""

    @abstractmethod
    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers, in order."""

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Send as much as possible without waiting, and return the rest. No `send` may be under way.

        Never raise: the later `send` of the rest raises the error.
        """
        return buffers

    @abstractmethod
    async def aclose(self) -> None:
        """Close immediately, even if tasks still wait."""


class SocketTransport(Transport):
    """A plain, non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)  # makes it non-blocking
        self._socket = sock

    async def receive_into(self, buffer: bytearray) -> int:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                continue

    async def send(self, buffers: Sequence[Buffer]) -> None:
        joined = join_small(buffers, JOIN_BYTES)
        while joined:
            try:
                sent = self._socket.sendmsg(joined[:SENDMSG_BUFFERS])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            else:
                joined = unsent(joined, sent)

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        joined = join_small(buffers, JOIN_BYTES)
        try:
            return unsent(joined, self._socket.sendmsg(joined[:SENDMSG_BUFFERS]))
        except OSError:
            return joined

    async def aclose(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        await trio.lowlevel.checkpoint()


class StreamTransport(Transport):
    """A Trio stream, such as one through TLS."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive_into(self, buffer: bytearray) -> int:
        data = await self._stream.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def send(self, buffers: Sequence[Buffer]) -> None:
        for buffer in join_small(buffers, JOIN_BYTES):
            await self._stream.send_all(buffer)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def open_transport(address: RedisAddress) -> Transport:
    """Connect, with a TLS handshake if the address requires TLS. The caller limits the time, and closes."""
    if address.path:
        stream = await trio.open_unix_socket(address.path)
    else:
        stream = await trio.open_tcp_stream(address.host, address.port)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        stream.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    if address.tls is None:
        return SocketTransport(socket.socket(fileno=stream.socket.detach()))

    encrypted = trio.SSLStream(stream, address.tls, server_hostname=address.host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error.__cause__, ssl.SSLError):  # trio's own error does not name the reason
            raise error.__cause__ from None
        raise
    return StreamTransport(encrypted)


def unsent(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """Return the rest of `buffers` after their first `sent` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []
