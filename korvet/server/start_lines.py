"""Log lines for the operator when a broker starts: addresses, storage, and what is unsafe or unreachable."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import trio

import korvet
from korvet.config import Config, Listener
from korvet.server.listeners import BoundListener, is_loopback
from korvet.server.server import Server

logger = logging.getLogger(__name__)

RESOLVE_LIMIT_S = 5.0


def start_lines(server: Server) -> list[str]:
    """Return the log lines of a started broker: version, addresses, storage and durability, and then warnings."""
    storage = server.broker.store
    addresses = ", ".join(
        bound.advertised.address if len(server.listeners) == 1 else str(bound.advertised)
        for bound in server.listeners
    )
    first = f"korvet {korvet.__version__}: clients connect to {addresses}; {storage.description}; {storage.durability}"
    if (processes := server.broker.config.processes) > 1:
        first += f"; {processes} processes"
    if others := server.broker.membership.others:
        named = ", ".join(f"{each.node_id} ({each.address})" for each in others)
        first += f"; broker {server.broker.membership.node_id} of a cluster with {named}"
    config = server.broker.config
    return [first, *(warning for bound in server.listeners for warning in _warnings(bound, config))]


def _warnings(bound: BoundListener, config: Config) -> Iterator[str]:
    if bound.is_loopback:
        return
    listener, advertised = bound.listener, bound.advertised
    if risk := _risk(listener, config):
        yield f"warning: listening on {listener.address}, which other machines can reach, {risk}"
    if is_loopback(advertised.host) or advertised.is_wildcard:
        yield (
            f"warning: clients of {listener.address} connect to {advertised.address}, which leads to"
            " the client's own machine; set advertised.listeners"
        )


def _risk(listener: Listener, config: Config) -> str:
    """Return what the listener lacks if other machines can reach it, or ""."""
    if not config.has_sasl(listener) and config.client_auth(listener) != "required":
        return "without authentication: any client may read, write and delete everything"
    if not config.has_tls(listener):
        return "without encryption: passwords of PLAIN, tokens and records can be read on the way"
    return ""


async def check_advertised(listeners: Sequence[BoundListener]) -> None:
    """Log a warning for each advertised host name that this machine cannot resolve."""
    for bound in listeners:
        if bound.is_loopback and is_loopback(bound.advertised.host):
            continue
        with trio.move_on_after(RESOLVE_LIMIT_S):
            try:
                await trio.socket.getaddrinfo(bound.advertised.host, bound.advertised.port)
            except OSError as error:
                logger.warning(
                    "the advertised address is %(address)s, but %(host)r cannot be resolved (%(error)s);"
                    " set advertised.listeners",
                    {
                        "address": bound.advertised.address,
                        "host": bound.advertised.host,
                        "error": error.strerror,
                    },
                )
