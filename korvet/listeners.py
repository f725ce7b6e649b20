"""Sockets that listen, and the addresses clients are told.

`localhost` is loopback on IPv4 and on IPv6, since clients try either first; an empty host is every address of both
families. A family the machine does not have is left out. Port 0 takes any free port, the same one in both.

Where several processes listen at one port (SO_REUSEPORT), the kernel gives each connection to one of them, by a hash of
its addresses. One more process, which accepts nothing, holds the port for them: it has seen that nobody else has it,
and keeps it while none of them runs.
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
# How often a port that was free in one family may be found taken in the other.
ATTEMPTS = 20

Address = tuple[str, socket.AddressFamily]


class ListenError(Exception):
    """An address that cannot be listened on; the message is one line for the operator."""


class PortInUse(ListenError):  # noqa: N818  what is the matter with it
    """Somebody else has the port."""


@frozen
class BoundListener:
    """A listener with the port it got, its sockets, and what its clients are told to connect to."""

    listener: Listener
    sockets: Sequence[socket.socket]
    advertised: Listener

    @property
    def is_loopback(self) -> bool:
        """Whether this machine alone can reach it."""
        return is_loopback(self.listener.host)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


class Use(Enum):
    """What a port is wanted for."""

    ALONE = auto()  # to listen, and nobody else may
    SHARED = auto()  # to listen beside others
    HELD = auto()  # to keep it for those who share it
    PROBED = auto()  # to see whether anybody has it


def open_listeners(config: Config, use: Use = Use.ALONE) -> list[BoundListener]:
    """Listen on everything the settings name. Raises ListenError, and then nothing is left open."""
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


@contextmanager
def held_ports(config: Config) -> Iterator[Config]:
    """Hold the ports of the settings, for processes that share them; the settings that name the ports they are.

    Raises PortInUse where somebody else has one, and ListenError.
    """
    # That a port is taken shows only to those who do not offer to share it.
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
    """Whether an address means the machine it is used on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def peer_name(address: tuple[str, int]) -> str:
    """A client's address as logs write it."""
    host, port, *_ = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _advertised(config: Config, listener: Listener) -> Listener:
    told = config.advertised(listener)
    if told is None:
        host = socket.gethostname() if listener.is_wildcard else listener.host
        return evolve(listener, host=host)
    return evolve(told, port=told.port or listener.port)


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
    """A socket for each address. Where there are several, those of a family this machine lacks are left out."""
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
        # Without it a port is taken for minutes after the last connection of the process before.
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
    """Set what accepted connections inherit. The receive buffer has to be set before a connection is there."""
    for option, size in (
        (socket.SO_SNDBUF, config.socket_send_buffer_bytes),
        (socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
    ):
        if size >= 0:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
