"""Listening sockets, and the addresses that the broker advertises to clients.

`localhost` is loopback on IPv4 and on IPv6, since clients try either first; an empty host is every address of both
families. A family that the machine does not support is left out. Port 0 takes any free port, the same one in both.

If several processes listen on one port (SO_REUSEPORT), the kernel assigns each connection to one of them by a hash of
its addresses. The parent process binds the port as well but does not listen: it has checked that no other program has
the port, and keeps it while no worker runs.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto

from attrs import evolve, frozen

from korvet.config import Config, Listener

LOOPBACK = (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))
EVERYWHERE = (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6))  # noqa: S104  asked for by name
NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
# Attempts to find a port that is free in both families.
ATTEMPTS = 20

Address = tuple[str, socket.AddressFamily]


class ListenError(Exception):
    """The broker cannot listen on an address. The message is one line for the operator."""


class PortInUse(ListenError):  # noqa: N818  names the condition
    """Another program has the port."""


@frozen
class BoundListener:
    """A listener with its actual port, its sockets, and the advertised address."""

    listener: Listener
    sockets: Sequence[socket.socket]
    advertised: Listener

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect to it."""
        return is_loopback(self.listener.host)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


class Use(Enum):
    """The purpose of binding a port."""

    ALONE = auto()  # listen exclusively
    SHARED = auto()  # listen, as other processes do on the same port
    HELD = auto()  # reserve it for the processes that listen
    PROBED = auto()  # check that no other program has it


def advertised_addresses(listeners: Sequence[BoundListener]) -> dict[str, tuple[str, int]]:
    """Return the advertised host and port by listener name."""
    return {bound.listener.name: (bound.advertised.host, bound.advertised.port) for bound in listeners}


def open_listeners(config: Config, use: Use = Use.ALONE) -> list[BoundListener]:
    """Bind all configured listeners for that use. Raises ListenError, and closes all sockets in that case."""
    bound: list[BoundListener] = []
    try:
        for listener in config.listeners:
            sockets = _open(listener, config, use)
            listener = evolve(listener, port=sockets[0].getsockname()[1])  # noqa: PLW2901  the same, bound
            bound.append(BoundListener(listener, sockets, _advertised(config, listener)))
    except BaseException:
        for opened in bound:
            opened.close()
        raise
    return bound


def open_address(listener: Listener, config: Config) -> list[socket.socket]:
    """Listen on an address that is not for Kafka clients. Raises ListenError."""
    return _open(listener, config, Use.ALONE)


@contextmanager
def held_ports(config: Config) -> Iterator[Config]:
    """Reserve the configured ports for processes that share them. Yield the settings with the actual ports.

    Raises PortInUse if another program has a port, and ListenError.
    """
    # A bind with SO_REUSEPORT can succeed although the port is in use. Only a bind without it detects that.
    probed = open_listeners(config, Use.PROBED)
    found = evolve(config, listeners=tuple(bound.listener for bound in probed))
    for bound in probed:
        bound.close()
    held = open_listeners(found, Use.HELD)
    try:
        yield found
    finally:
        for bound in held:
            bound.close()


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def peer_name(address: tuple[str, int]) -> str:
    """Return a client's address for log lines."""
    host, port, *_ = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _advertised(config: Config, listener: Listener) -> Listener:
    advertised = config.advertised(listener)
    if advertised is None:
        host = socket.gethostname() if listener.is_wildcard else listener.host
        return evolve(listener, host=host)
    return evolve(advertised, port=advertised.port or listener.port)


def _open(listener: Listener, config: Config, use: Use) -> list[socket.socket]:
    addresses = _addresses(listener)
    for _ in range(ATTEMPTS):
        try:
            return _bind_all(addresses, listener.port, config, use)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ListenError(f"cannot listen on {listener.address}: {error.strerror}") from None
            if listener.port:
                raise PortInUse(
                    f"cannot listen on {listener.address}: port {listener.port} is in use"
                ) from None
    raise ListenError(f"cannot listen on {listener.address}: no port is free in both families")


def _addresses(listener: Listener) -> Sequence[Address]:
    if listener.host == "localhost":
        return LOOPBACK
    if listener.host == "":
        return EVERYWHERE
    try:
        found = socket.getaddrinfo(listener.host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(f"cannot listen on {listener.address}: {error.strerror}") from None
    return [(str(address[0]), family) for family, _, _, _, address in found]


def _bind_all(addresses: Sequence[Address], port: int, config: Config, use: Use) -> list[socket.socket]:
    """Bind a socket for each address. If there are several, leave out those of unsupported families."""
    sockets: list[socket.socket] = []
    try:
        for number, (host, family) in enumerate(addresses, 1):
            try:
                sockets.append(_bind(host, family, port, config, use, only_v6=len(addresses) > 1))
            except OSError as error:
                if error.errno not in NO_SUCH_FAMILY or (number == len(addresses) and not sockets):
                    raise
            else:
                port = sockets[0].getsockname()[1]
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind(
    host: str, family: socket.AddressFamily, port: int, config: Config, use: Use, *, only_v6: bool
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        # Without SO_REUSEADDR, a port stays in use for minutes after the last connection of the previous process.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if use in (Use.SHARED, Use.HELD):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_v6))
        sock.bind((host, port))
        _size_buffers(sock, config)
        if use in (Use.ALONE, Use.SHARED):
            sock.listen(config.socket_listen_backlog_size)
    except BaseException:
        sock.close()
        raise
    return sock


def _size_buffers(sock: socket.socket, config: Config) -> None:
    """Set the socket buffer sizes, which accepted connections inherit."""
    # The receive buffer has to be set before the connection exists: it determines the TCP window scale.
    for option, size in (
        (socket.SO_SNDBUF, config.socket_send_buffer_bytes),
        (socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
    ):
        if size >= 0:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
