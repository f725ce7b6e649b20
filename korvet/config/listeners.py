"""Listeners: their addresses and security protocols, as settings spell them."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any

import attrs
from attrs import frozen

from korvet.config.kinds import Kind, integer, list_of

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
WILDCARD_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104  recognised, not bound
LISTENER = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_-]+)://)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[A-Za-z0-9._-]*))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
DEFAULT_PORT = 9092


@frozen
class Listener:
    """An address that the broker listens on or advertises. Equal names associate these two addresses."""

    name: str
    host: str  # "" means all addresses of the machine
    port: int

    @property
    def address(self) -> str:
        """The address as clients accept it: `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """True if it means all addresses of the machine. Clients cannot connect to such an address."""
        return self.host in WILDCARD_HOSTS

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def _parse_listener(value: Any) -> Listener:
    match = LISTENER.fullmatch(str(value))
    if match is None or not _is_address(match):
        raise ValueError(f"{value!r} is not an address")
    return Listener(
        (match["name"] or "").upper(), match["ipv6"] or match["host"], int(match["port"] or DEFAULT_PORT)
    )


def _is_address(match: re.Match[str]) -> bool:
    """Return True unless the port is too large, or a port may have been meant where a host stands."""
    if match["port"] is None:
        host = match["ipv6"] or match["host"]
        return not host.isdecimal() and any(character.isalnum() for character in host)
    return int(match["port"]) <= 65535


def _parse_listeners(value: Any) -> tuple[Listener, ...]:
    """Parse listeners with unique names. Those without a name get PLAINTEXT, PLAINTEXT2, … in order."""
    address: Kind[Listener] = Kind("string", "", _parse_listener)
    listeners = []
    for number, listener in enumerate(list_of(address).parse(value), 1):
        name = listener.name or ("PLAINTEXT" if number == 1 else f"PLAINTEXT{number}")
        listeners.append(attrs.evolve(listener, name=name))
    if len({listener.name for listener in listeners}) < len(listeners):
        raise ValueError("two listeners have the same name")
    return tuple(listeners)


def parse_address(value: Any) -> Listener:
    """Parse the address of a port that does not serve the Kafka protocol. Raises ValueError."""
    match = LISTENER.fullmatch(str(value))
    if match is None or match["name"] or match["port"] is None or not _is_address(match):
        raise ValueError(f"{value!r} is not an address")
    return _parse_listener(value)


def _parse_optional_address(value: Any) -> str:
    return str(value) if value == "" else parse_address(value).address


#: An address as a text, or "" for none.
ADDRESS: Kind[str] = Kind(
    "string",
    "HOST:PORT; localhost is loopback, :PORT all addresses, port 0 any free port",
    _parse_optional_address,
)


@frozen
class ListenerProtocol:
    """The security protocol of the listener with that name."""

    name: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.name}:{self.protocol}"


def _parse_protocol(value: Any) -> ListenerProtocol:
    name, _, protocol = str(value).upper().partition(":")
    if not name or protocol not in PROTOCOLS:
        raise ValueError(f"{value!r} names no protocol")
    return ListenerProtocol(name, protocol)


PROTOCOL_MAP: Kind[tuple[ListenerProtocol, ...]] = attrs.evolve(
    list_of(Kind("", f"NAME:PROTOCOL; protocols are {', '.join(PROTOCOLS)}", _parse_protocol)), type="string"
)
LISTENERS: Kind[tuple[Listener, ...]] = Kind(
    "list", "HOST:PORT, HOST, :PORT, [IPV6]:PORT or NAME://HOST:PORT, separated by commas", _parse_listeners
)


@frozen
class AddressLimit:
    """The limit of connections from an address, which is in the notation of `ipaddress`."""

    address: str
    limit: int

    def __str__(self) -> str:
        return f"{self.address}:{self.limit}"


def _parse_address_limit(value: Any) -> AddressLimit:
    text, _, limit = str(value).rpartition(":")
    address = ip_address(text.strip("[]"))
    return AddressLimit(
        str(getattr(address, "ipv4_mapped", None) or address), integer(at_least=0).parse(limit)
    )


ADDRESS_LIMITS: Kind[tuple[AddressLimit, ...]] = attrs.evolve(
    list_of(Kind("", "ADDRESS:NUMBER", _parse_address_limit)), type="string"
)
