"""Connections for appends that wait until replicas have them.

WAIT answers for what its own connection wrote, and whatever is sent behind it waits as well. So such appends have
connections of their own, opened when the first of them comes, and more of them, up to a limit, when all are waiting.
"""

from __future__ import annotations

import logging

import trio
from attrs import define, field
from redis.exceptions import RedisError

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.redis_address import RedisAddress
from korvet.storage.redis_connection import NotConnected, RedisConnection, open_connection

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 8


@define(eq=False)
class WaitingConnections:
    """Some connections to one server, and how many WAITs each has to answer."""

    address: RedisAddress
    nursery: trio.Nursery
    patience_s: float
    _waits: dict[RedisConnection, int] = field(factory=dict)
    _opening: bool = False
    _opened: trio.Event = field(factory=trio.Event)

    async def open(self) -> None:
        """Make sure that there is at least one connection."""
        if self._waits:
            return
        if not self._opening:
            self._open_another()
        with trio.move_on_after(self.patience_s):
            await self._opened.wait()
        if not self._waits:
            raise KafkaStorageError(f"no second connection to Redis at {self.address.description}")

    def choose(self) -> RedisConnection:
        """The connection that is the least busy. Raises NotConnected where none is connected."""
        connected = [each for each in self._waits if each.is_connected]
        if not connected:
            raise NotConnected(f"no connection to {self.address.description}")
        chosen = min(connected, key=self._waits.__getitem__)
        if self._waits[chosen] and not self._opening and len(self._waits) < MAX_CONNECTIONS:
            self._open_another()
        return chosen

    async def wait_connected(self) -> None:
        """Return when `choose` finds a connection."""
        async with trio.open_nursery() as nursery:
            for connection in self._waits:
                nursery.start_soon(self._first_connected, connection, nursery.cancel_scope)

    async def _first_connected(self, connection: RedisConnection, scope: trio.CancelScope) -> None:
        await connection.wait_connected()
        scope.cancel()

    def started(self, connection: RedisConnection) -> None:
        """A WAIT was sent."""
        self._waits[connection] += 1

    def ended(self, connection: RedisConnection) -> None:
        """A WAIT was answered, or never will be."""
        self._waits[connection] -= 1

    def _open_another(self) -> None:
        self._opening = True
        self.nursery.start_soon(self._hold_open)

    async def _hold_open(self) -> None:
        try:
            async with open_connection(self.address, name="wait", announce=False) as connection:
                self._opening = False
                self._waits[connection] = 0
                self._opened.set()
                await trio.sleep_forever()
        except RedisError as error:
            # The first connection got in; since then somebody has changed the password, or the server.
            logger.warning("no second connection to Redis at %s: %s", self.address.description, error)
            self._opening = False
