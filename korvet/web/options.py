"""The options of the page, and the sockets it listens on."""

from __future__ import annotations

import ipaddress
import socket

from attrs import field, frozen

from korvet.client import PLAINTEXT, Security, parse_address
from korvet.client.security import MECHANISMS

#: Mechanisms of the login form. OAUTHBEARER needs a token, not a password.
LOGINS = tuple(mechanism for mechanism in MECHANISMS if mechanism != "OAUTHBEARER")
LOOPBACK_NAMES = ("localhost",)
BACKLOG = 100
# Time after which the kernel resets a connection whose client does not receive.
SEND_TIMEOUT_MS = 10_000


class PageRefused(Exception):  # noqa: N818  names the condition
    """The page cannot be served with these options. The message is one line."""


@frozen
class PageOptions:
    """Options of the page. `login` is the SASL mechanism of the login form, or empty if there is no form."""

    host: str
    port: int
    bootstrap_servers: str = ""
    security: Security = PLAINTEXT
    login: str = ""
    write: bool = False
    #: PEM files of the page's own certificate and key; empty: HTTP without TLS.
    certificate: str = ""
    key: str = ""
    #: URL of a schema registry, which may include user and password.
    registry: str = field(default="", repr=False)
    #: Location of the archive's tables.
    lake: str = ""
    #: URL of a broker's metrics, http://HOST:PORT/metrics.
    metrics: str = ""

    @property
    def has_tls(self) -> bool:
        return bool(self.certificate)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def refuse_unsafe(self) -> None:
        """Raise PageRefused if other machines could use the page without a login."""
        if self.login and self.login not in LOGINS:
            raise PageRefused(f"the login form takes {', '.join(LOGINS)}, not {self.login}.")
        if bool(self.certificate) != bool(self.key):
            raise PageRefused("a certificate needs its key, and a key its certificate: give both PEM files.")
        if self.metrics and not self.metrics.startswith(("http://", "https://")):
            raise PageRefused(f"{self.metrics!r} is no URL of metrics; accepted: http://HOST:PORT/metrics")
        if not self.is_loopback and not self.login:
            raise PageRefused(
                f"{self.host or 'an empty host'} can be reached from other machines, and the page would have no login;"
                " accepted: an address of this machine such as localhost, or a cluster with SASL and a login form."
            )


def parse_listen(text: str) -> tuple[str, int]:
    """Parse HOST:PORT of the page; the host may be empty (all addresses), the port 0. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if colon and port == "0":
        text = f"{host or '0.0.0.0'}:1"  # noqa: S104  checked like any other address below
        address = parse_address(text)
        return (address.host if host else ""), 0
    if not colon:
        raise ValueError(f"{text!r} is not an address; accepted: HOST:PORT, [IPV6]:PORT, :PORT")
    if not host:
        host = "0.0.0.0"  # noqa: S104  the user's choice, checked by refuse_unsafe
    try:
        return parse_address(f"{host}:{port}")
    except ValueError:
        raise ValueError(f"{text!r} is not an address; accepted: HOST:PORT, [IPV6]:PORT, :PORT") from None


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to the host."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind the addresses of a host, with one port if `port` is 0. Raises PageRefused."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise PageRefused(f"the page cannot listen on {host}:{port}: {error.strerror}.") from None
    sockets: list[socket.socket] = []
    for family, kind, proto, _, address in sorted(set(found), key=lambda each: each[0]):
        try:
            sock = _bound(family, kind, proto, (address[0], port, *address[2:]))
        except OSError as error:
            # A host without IPv6 still resolves localhost to ::1.
            if sockets or (family == socket.AF_INET6 and len(found) > 1):
                continue
            raise PageRefused(f"the page cannot listen on {host}:{port}: {error.strerror}.") from None
        sockets.append(sock)
        port = sock.getsockname()[1]
    return sockets


def _bound(family: int, kind: int, proto: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SEND_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
