"""Which connections the broker accepts, and when: their number, and the rate at which they are created.

As in Kafka (KIP-402, KIP-612), a connection above the limits of the broker or of its listener waits. The broker closes
a connection above the number of its address immediately. It closes one above the quota of its address after a delay,
because its client may connect again immediately.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import trio
from attrs import define, field

from korvet.broker.limits import ConnectionLimit, share_of
from korvet.broker.quotas import ClientQuotas
from korvet.broker.rates import Rate, Window
from korvet.config import Config, Listener
from korvet.config.kinds import MAX_INT
from korvet.logs import LogLimit

logger = logging.getLogger(__name__)


@lru_cache(maxsize=4096)
def canonical(host: str) -> str:
    """Return an address in one notation. IPv4 addresses in IPv6 are IPv4."""
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


def host_of(peer: str) -> str:
    """Return the address of a peer, which is followed by its port."""
    return canonical(peer.rpartition(":")[0].strip("[]"))


@define(eq=False)
class Gate:
    """The limits of the broker, or of one listener."""

    number: ConnectionLimit
    rate: int
    window: Window
    _created: Rate = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._created = Rate(self.window)

    def apply(self, other: Gate) -> None:
        """Take the limits of another gate."""
        self.rate = other.rate
        self.number.change(other.number.limit)

    def charge(self, connections: int) -> float:
        """Count new connections, and return the seconds for which the last one has to wait."""
        if self.rate == MAX_INT:
            return 0.0
        now = trio.current_time()
        self._created.record(connections, self.rate, now)
        return min(self._created.excess_s(self.rate, now), self.window.sample_s)


@define(eq=False)
class Admission:
    """The limits of connections."""

    config: Config
    quotas: ClientQuotas
    refusals: LogLimit = field(factory=lambda: LogLimit(logger))
    _all: Gate = field(init=False)
    _listeners: Mapping[str, Gate] = field(init=False)
    _by_host: Counter[str] = field(factory=Counter)

    def configure(self, config: Config) -> None:
        """Apply other limits. Connections above a lower limit stay."""
        self.config = config
        self._all.apply(self._gate(config.max_connections, config.max_connection_creation_rate))
        for listener in config.listeners:
            most = config.of_listener(listener, "max_connections")
            rate = config.of_listener(listener, "max_connection_creation_rate")
            self._listeners[listener.name].apply(self._gate(most, rate))

    def __attrs_post_init__(self) -> None:
        config = self.config
        self._all = self._gate(config.max_connections, config.max_connection_creation_rate)
        self._listeners = {
            listener.name: self._gate(
                config.of_listener(listener, "max_connections"),
                config.of_listener(listener, "max_connection_creation_rate"),
            )
            for listener in config.listeners
        }

    def _gate(self, most: int, rate: int) -> Gate:
        window = Window(self.config.quota_window_num, self.config.quota_window_size_seconds)
        processes = self.config.processes
        share = rate if rate == MAX_INT else share_of(rate, processes)
        return Gate(ConnectionLimit(share_of(most, processes)), share, window)

    @property
    def open(self) -> int:
        """The number of connections."""
        return self._all.number.open

    async def wait_for_place(self, listener: Listener) -> None:
        """Wait until the listener may accept one more connection."""
        own = self._listeners[listener.name].number
        while self._all.number.is_reached or own.is_reached:
            await self._all.number.wait_below()
            await own.wait_below()

    async def wait_for_rate(self, listener: Listener) -> None:
        """Count a new connection, and wait until the rate of new connections allows it."""
        excess_s = max(gate.charge(1) for gate in (self._all, self._listeners[listener.name]))
        if excess_s:
            await trio.sleep(excess_s)

    def refused_for_s(self, listener: Listener, peer: str) -> float | None:
        """Return after how many seconds to close a connection because of its address, or None to accept it."""
        host = host_of(peer)
        if delay_s := self.quotas.connected(host):
            for gate in (self._all, self._listeners[listener.name]):
                gate.charge(-1)
            text = "%(peer)s: connection refused: its address creates connections too fast"
            self.refusals.log(text, {"peer": peer, "listener": listener.name})
            return delay_s
        most = self.config.max_connections_of(host)
        if self._by_host[host] >= most:
            text = "%(peer)s: connection refused: its address has the maximum of %(limit)d"
            self.refusals.log(text, {"peer": peer, "limit": most, "listener": listener.name})
            return 0.0
        return None

    def opened(self, listener_name: str, peer: str) -> None:
        """Count a connection that is served."""
        self._all.number.opened()
        self._listeners[listener_name].number.opened()
        self._by_host[host_of(peer)] += 1

    def closed(self, listener_name: str, peer: str) -> None:
        self._all.number.closed()
        self._listeners[listener_name].number.closed()
        host = host_of(peer)
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
