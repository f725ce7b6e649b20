"""Checks of the listeners: that the ports are free, and that clients reach the broker at the advertised addresses."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import trio

from korvet.config import Config, ConfigError, Listener
from korvet.doctor.findings import Finding, error, ok, warning
from korvet.security.certificates import valid_until
from korvet.security.password_file import read_passwords
from korvet.server.keystores import certificate_of, listeners_tls
from korvet.server.listeners import BoundListener, ListenError, PortInUse, is_loopback, open_listeners

CONNECT_LIMIT_S = 3.0
EXPIRES_SOON_DAYS = 30


async def listener_findings(config: Config) -> AsyncIterator[Finding]:
    """Yield the findings about the listeners. They are bound for the time of the checks, unless a port is in use."""
    for found in (*certificate_findings(config), *user_findings(config)):
        yield found
    try:
        bound = open_listeners(config)
    except PortInUse as refusal:
        yield warning(
            "listeners",
            str(refusal),
            "if that is the broker itself, `korvet topics list` shows that it answers; otherwise choose another port",
        )
        return
    except ListenError as refusal:
        yield error(
            "listeners", str(refusal), "listeners: an address of this machine, or :PORT for all of them"
        )
        return
    try:
        for each in bound:
            yield ok("listeners", f"{each.listener} is free")
            yield encryption(config, each.listener)
            async for found in advertised_findings(each):
                yield found
    finally:
        for each in bound:
            each.close()


def certificate_findings(config: Config) -> Iterator[Finding]:
    """Yield the findings about the certificates of listeners with TLS."""
    try:
        found = listeners_tls(config)
    except ConfigError as refusal:
        for line in refusal.errors:
            yield error("certificate", line, "docs/security.md describes the files")
        return
    for name, tls in found.items():
        yield validity(name, valid_until(certificate_of(tls.settings)), datetime.now(UTC))


def validity(listener: str, end: datetime, now: datetime) -> Finding:
    """Judge the time for which a listener's certificate is still valid."""
    days = (end - now) / timedelta(days=1)
    found = f"that of {listener} is valid until {end:%Y-%m-%d}"
    if days < 0:
        return error("certificate", f"that of {listener} has expired at {end:%Y-%m-%d}", "a new certificate")
    if days < EXPIRES_SOON_DAYS:
        return warning(
            "certificate", f"{found}, {days:.0f} days", "a new certificate; brokers read it from the file"
        )
    return ok("certificate", f"{found}, and its key belongs to it")


def user_findings(config: Config) -> Iterator[Finding]:
    """Yield the finding about the file with users of PLAIN."""
    if (path := config.sasl_plain_users_file) is not None:
        try:
            yield ok("users", f"{path} has {len(read_passwords(path))} user(s) of PLAIN")
        except ConfigError as refusal:
            yield error("users", str(refusal), "docs/security.md describes the file")


def encryption(config: Config, listener: Listener) -> Finding:
    """Judge the protocol of a listener that other machines reach."""
    protocol = config.protocol(listener)
    is_authenticated = config.has_sasl(listener) or config.client_auth(listener) == "required"
    if is_loopback(listener.host) or (config.has_tls(listener) and is_authenticated):
        return ok("security", f"{listener} is {protocol}")
    missing = {
        "PLAINTEXT": "neither encryption nor authentication",
        "SASL_PLAINTEXT": "no encryption: who sees the network sees passwords and records",
        "SSL": "no authentication without ssl.client.auth=required",
    }[protocol]
    return warning(
        "security",
        f"{listener} is {protocol} and not loopback: {missing}",
        "SASL_SSL; see docs/security.md",
    )


async def advertised_findings(bound: BoundListener) -> AsyncIterator[Finding]:
    """Yield the findings about the advertised address, to which this machine connects as a client does."""
    advertised = bound.advertised
    try:
        found = await trio.socket.getaddrinfo(advertised.host, advertised.port, type=socket.SOCK_STREAM)
    except OSError as refusal:
        yield error(
            "advertised",
            f"{advertised.address} cannot be resolved here: {refusal.strerror}",
            "advertised.listeners: a name or address that clients can resolve",
        )
        return
    addresses = [cast(tuple[str, int], address[:2]) for *_, address in found]
    refused = [address[0] for address in addresses if not await is_ours(address, bound)]
    if not refused:
        yield ok("advertised", f"{advertised.address} leads to this broker")
        return
    reason = f"{advertised.address} is {', '.join(refused)}, where this broker does not listen"
    if len(refused) < len(found):
        yield warning(
            "advertised", f"{reason}; some clients try that first", "listen on that address as well"
        )
    else:
        yield warning(
            "advertised",
            f"{reason}, as seen from this machine",
            "correct unless a proxy or NAT forwards it; otherwise change advertised.listeners",
        )


async def is_ours(address: tuple[str, int], bound: BoundListener) -> bool:
    """Return True if a connection to the address arrives at the listener."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with trio.socket.socket(family, socket.SOCK_STREAM) as client, trio.move_on_after(CONNECT_LIMIT_S):
        try:
            await client.connect(address)
        except OSError:
            return False
        return any(accepts(sock, client.getsockname()) for sock in bound.sockets)
    return False


def accepts(listening: socket.socket, client: tuple[str, int]) -> bool:
    """Return True if the next connection that waits at the socket is that of the client."""
    try:
        accepted, peer = listening.accept()
    except BlockingIOError:
        return False
    accepted.close()
    return bool(peer[1] == client[1])
