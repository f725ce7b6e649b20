"""Parse the address and the credentials of a Redis server from a URL.

`redis://[user:password@]host[:port][/db]`, `rediss://…` for TLS, `unix://[user:password@]/path[?db=n]`, with those
query options of the `redis` package that apply here. `description`, the form of an address in messages, omits the
password.

`redis+sentinel://[user:password@]host[:port][,host[:port]…]/name[/db]`, and `rediss+sentinel://…` for TLS, name
Sentinels, and the primary as the Sentinels call it. User and password are those of the primary; the options
`sentinel_username` and `sentinel_password` are those of the Sentinels.

`redis+cluster://[user:password@]host[:port][,host[:port]…]`, and `rediss+cluster://…` for TLS, name some nodes of a
Redis Cluster, which list all of its nodes.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import trio
from attrs import evolve, field, frozen

from korvet.storage.interface import StorageUsageError
from korvet.urls import split_hosts, without_password

logger = logging.getLogger(__name__)

SENTINEL = "+sentinel"
SENTINEL_FORM = "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"
SENTINEL_PORT = 26379
CLUSTER = "+cluster"
CLUSTER_FORM = "redis+cluster://HOST:PORT,HOST:PORT"
REDIS_PORT = 6379

# The options that a URL's query may set, named as in the redis package, and their meaning.
OPTIONS = {
    "db": "the database's number",
    "username": "the ACL user",
    "password": "its password",
    "client_name": "how the connections are called in CLIENT LIST",
    "protocol": "2 (default) or 3",
    "socket_connect_timeout": "seconds until an attempt to connect is given up",
    "socket_timeout": "seconds without any answer until a connection is given up",
}
TLS_OPTIONS = {
    "ssl_ca_certs": "a file with the certificates of the authorities to trust",
    "ssl_ca_path": "a folder with them",
    "ssl_ca_data": "the certificates themselves, PEM",
    "ssl_cert_reqs": "none, optional or required (default)",
    "ssl_check_hostname": "whether the certificate must be for the host (default: true)",
    "ssl_certfile": "this side's certificate",
    "ssl_keyfile": "its key",
    "ssl_password": "the key's password",
    "ssl_ciphers": "accepted ciphers, in OpenSSL's notation",
    "ssl_min_version": "the lowest TLS version, as a number of ssl.TLSVersion",
}
SENTINEL_OPTIONS = {
    "sentinel_username": "the ACL user of the Sentinels",
    "sentinel_password": "its password",
}
CERT_REQS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@frozen
class Sentinels:
    """The Sentinels that can name a primary, their credentials, and the primary's name."""

    name: str
    hosts: Sequence[tuple[str, int]]
    username: str = ""
    password: str = field(default="", repr=False)


@frozen
class RedisAddress:
    """A server's address and credentials. `path` is a Unix socket; if it is set, host and port are ignored.

    If `sentinels` is set, they name host and port at each connection. If `nodes` is set, they are nodes of a Redis
    Cluster, and host and port are ignored.
    """

    host: str = "localhost"
    port: int = REDIS_PORT
    path: str = ""
    sentinels: Sentinels | None = None
    nodes: Sequence[tuple[str, int]] = ()
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    client_name: str = ""
    protocol: int = 2
    tls: ssl.SSLContext | None = None
    connect_limit_s: float = 5.0
    answer_limit_s: float = 10.0
    # Returns the present URL, whose references to secrets may lead to a changed password.
    reread: Callable[[], str] | None = field(default=None, eq=False, repr=False)

    @property
    def description(self) -> str:
        """The address as a URL, without the password and the options."""
        user = f"{self.username}@" if self.username else ""
        if self.path:
            return f"unix://{user}{self.path}" + (f"?db={self.db}" if self.db else "")
        scheme = "rediss" if self.tls is not None else "redis"
        database = f"/{self.db}" if self.db else ""
        if self.nodes:
            return f"{scheme}{CLUSTER}://{user}{hosts_and_ports(self.nodes)}"
        if self.sentinels is not None:
            hosts = hosts_and_ports(self.sentinels.hosts)
            return f"{scheme}{SENTINEL}://{user}{hosts}/{self.sentinels.name}{database}"
        return f"{scheme}://{user}{host_and_port(self.host, self.port)}{database}"

    def of_node(self, host: str, port: int) -> RedisAddress:
        """Return the address of one node of the cluster, with the same credentials."""
        return evolve(self, host=host, port=port, nodes=())

    async def with_current_login(self) -> RedisAddress:
        """Return the address with the user, password and certificates of now, or of before if they are unreadable."""
        if self.reread is None:
            return self
        # Loading certificates takes 20 ms.
        return await trio.to_thread.run_sync(self._with_current_login, self.reread)

    def _with_current_login(self, reread: Callable[[], str]) -> RedisAddress:
        try:
            now = parse_address(reread())
        except (ValueError, StorageUsageError) as error:
            fields = {"redis": self.description, "error": error}
            logger.warning("the password of Redis cannot be read again: %(error)s", fields)
            return self
        sentinels = self.sentinels and now.sentinels
        return evolve(self, username=now.username, password=now.password, tls=now.tls, sentinels=sentinels)


def host_and_port(host: str, port: int) -> str:
    """Return both as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def hosts_and_ports(hosts: Sequence[tuple[str, int]]) -> str:
    """Return several servers as in a URL."""
    return ",".join(host_and_port(*each) for each in hosts)


def parse_address(url: str) -> RedisAddress:
    """Parse a URL. Raise StorageUsageError, whose message omits the password, if the URL is invalid."""
    try:
        return address_from(url)
    except (ValueError, OSError) as error:  # OSError: a certificate's file, and ssl.SSLError is one
        accepted = "; accepted: [::1]:PORT" if "IPv6" in str(error) else ""
        raise StorageUsageError(f"{without_password(url)}: {error}{accepted}") from None


def address_of(where: str | RedisAddress) -> RedisAddress:
    """Return an address unchanged, or parse a URL; raise as `parse_address` does."""
    return parse_address(where) if isinstance(where, str) else where


def address_from(url: str) -> RedisAddress:
    """Parse a URL; raise ValueError or OSError without the URL in the message."""
    scheme = split_hosts(url).scheme
    if scheme.endswith(SENTINEL):
        return sentinel_address_from(url)
    if scheme.endswith(CLUSTER):
        return cluster_address_from(url)

    from redis.connection import parse_url  # noqa: PLC0415  see redis_errors

    refuse_unknown_options(url)
    given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    path = given.get("path", "")
    if url.startswith("unix:") and not path:
        raise ValueError("the socket's path is missing: unix:///path/to/redis.sock")
    protocol = given.get("protocol", 2)
    if protocol not in (2, 3):
        raise ValueError(f"protocol={protocol}: expected 2 or 3")

    return RedisAddress(
        host=given.get("host", "localhost"),
        port=given.get("port", 6379),
        path=path,
        db=database(url, given.get("db")),
        username=given.get("username", ""),
        password=given.get("password", ""),
        client_name=given.get("client_name", ""),
        protocol=protocol,
        tls=tls_context(given) if url.startswith("rediss:") else None,
        connect_limit_s=given.get("socket_connect_timeout", 5.0),
        answer_limit_s=given.get("socket_timeout", 10.0),
    )


def sentinel_address_from(url: str) -> RedisAddress:
    """Parse a URL of Sentinels; raise as `address_from` does."""
    parts = split_hosts(url)
    login, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    if not hosts or not name:
        raise ValueError(f"expected Sentinels and the primary's name, as in {SENTINEL_FORM}")
    refuse_unknown_options(url, [*SENTINEL_OPTIONS])
    options = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode([option for option in options if option[0] not in SENTINEL_OPTIONS])
    scheme = parts.scheme.removesuffix(SENTINEL)
    own = dict(options)
    sentinels = Sentinels(
        unquote(name),
        tuple(server_from(each, "Sentinel", SENTINEL_PORT, SENTINEL_FORM) for each in hosts.split(",")),
        own.get("sentinel_username", ""),
        own.get("sentinel_password", ""),
    )
    return evolve(address_from(f"{scheme}://{login}{at}/{database}?{query}"), sentinels=sentinels)


def cluster_address_from(url: str) -> RedisAddress:
    """Parse a URL of nodes of a Redis Cluster; raise as `address_from` does."""
    parts = split_hosts(url)
    login, at, hosts = parts.netloc.rpartition("@")
    if not hosts:
        raise ValueError(f"expected nodes of the cluster, as in {CLUSTER_FORM}")
    nodes = tuple(server_from(each, "node", REDIS_PORT, CLUSTER_FORM) for each in hosts.split(","))
    query = f"?{parts.query}" if parts.query else ""
    address = address_from(f"{parts.scheme.removesuffix(CLUSTER)}://{login}{at}{parts.path}{query}")
    if address.db:
        raise ValueError(f"/{address.db}: a Redis Cluster has only the database 0")
    return evolve(address, nodes=nodes)


def server_from(text: str, what: str, default_port: int, form: str) -> tuple[str, int]:
    """Parse the host and port of a node or Sentinel, in a URL of that form."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} names no {what}: expected HOST:PORT, as in {form}")
    return parts.hostname, parts.port or default_port


def refuse_unknown_options(url: str, further: Sequence[str] = ()) -> None:
    """Raise ValueError for an option that would silently have no effect."""
    accepted: Sequence[str] = [*OPTIONS, *further, *(TLS_OPTIONS if url.startswith("rediss") else ())]
    unknown = [
        name for name, _ in parse_qsl(split_hosts(url).query, keep_blank_values=True) if name not in accepted
    ]
    if unknown:
        raise ValueError(f"unknown option {', '.join(unknown)}; accepted are {', '.join(accepted)}")


def database(url: str, given: int | None) -> int:
    """Return the database's number. Raise ValueError for any other path, which the redis package silently ignores."""
    path = split_hosts(url).path.strip("/")
    if given is None and path and not url.startswith("unix:"):
        raise ValueError(f"/{path}: expected a database's number, as in redis://host:6379/0")
    return given or 0


def tls_context(given: dict[str, Any]) -> ssl.SSLContext:
    """Return the TLS context that the redis package would create from its ssl_* options."""
    cert_reqs = given.get("ssl_cert_reqs", "required")
    if cert_reqs not in CERT_REQS:
        raise ValueError(f"ssl_cert_reqs={cert_reqs}: expected {', '.join(CERT_REQS)}")

    context = ssl.create_default_context(
        cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"), cadata=given.get("ssl_ca_data")
    )
    context.check_hostname = CERT_REQS[cert_reqs] == ssl.CERT_REQUIRED and bool(
        given.get("ssl_check_hostname", True)
    )
    context.verify_mode = CERT_REQS[cert_reqs]
    if "ssl_certfile" in given:
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password"))
    if "ssl_ciphers" in given:
        context.set_ciphers(given["ssl_ciphers"])
    if "ssl_min_version" in given:
        context.minimum_version = ssl.TLSVersion(int(given["ssl_min_version"]))
    return context
