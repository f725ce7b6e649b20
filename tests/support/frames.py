"""Blocking sockets that carry the protocol's frames: four bytes of size, then as many bytes."""

from __future__ import annotations

import socket
import ssl
import struct

SIZE = struct.Struct(">i")


def connect(address: str | tuple[str, int], limit_s: float | None = None) -> socket.socket:
    """Open a blocking connection to a port or a Unix socket. `limit_s` is for it and for each later wait."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(limit_s)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    if family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_frame(connection: socket.socket) -> bytearray:
    """Return the next frame without its size. Raises ConnectionError if the connection is closed, and TimeoutError."""
    return receive_exactly(connection, SIZE.unpack(receive_exactly(connection, 4))[0])


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """Return as many bytes. Raises ConnectionError if the connection is closed before, and TimeoutError."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL  # TLS accepts none
    while filled < size:
        received = connection.recv_into(view[filled:], 0, flags)
        if received == 0:
            raise ConnectionError("the broker closed the connection")
        filled += received
    return buffer
