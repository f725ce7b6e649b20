"""Connections for writes that wait for replicas.

WAIT covers only the writes of one connection, and blocks all later commands of it. Such writes therefore
use separate connections. The first one is opened for the first such write, further ones, up to a limit, if all are
waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaStorageError, NotEnoughReplicas
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.connection import (
    NotConnected,
    RedisConnection,
    RedisUnavailable,
    open_connection,
)
from korvet.storage.redis.client.errors import RedisError

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 8
# Part of the error of WAIT on a server that was demoted after the connection was opened.
ON_REPLICA = "WAIT cannot be used with replica instances"


@define(eq=False)
class WaitingConnections:
    """Connections to one server, each with its number of unanswered WAITs."""

    address: RedisAddress
    nursery: trio.Nursery
    patience_s: float
    _waits: dict[RedisConnection, int] = field(factory=dict)
    _opening: bool = False
    _tried: trio.Event = field(factory=trio.Event)
    _may_wait: bool = False

    async def open(self) -> None:
        """Ensure that there is a connection, and that it accepts WAIT, which some services and Redis users lack.

        Raise NotEnoughReplicas before a record is written that no replica could confirm; KafkaStorageError if there is
        no connection to a primary.
        """
        if self._may_wait:
            return
        if not self._waits:
            await self._open_first()
        try:
            await next(iter(self._waits)).execute(b"WAIT", 0, 1)
        except RedisUnavailable as error:
            raise KafkaStorageError(str(error)) from error
        except RedisError as error:
            if ON_REPLICA in str(error):
                raise KafkaStorageError(f"the server has become a replica: {error}") from error
            raise NotEnoughReplicas(f"min.insync.replicas above 1 needs WAIT, but: {error}") from error
        self._may_wait = True

    async def _open_first(self) -> None:
        if not self._opening:
            self._open_another()
        with trio.move_on_after(self.patience_s):
            await self._tried.wait()
        if not self._waits:
            raise KafkaStorageError(f"no second connection to Redis at {self.address.description}")

    def opened(self) -> Sequence[RedisConnection]:
        """Return all connections, up or not."""
        return tuple(self._waits)

    def idle(self) -> RedisConnection | None:
        """Return a connected connection without unanswered WAITs, or None. Then open another one, up to the limit."""
        try:
            chosen = self.choose()
        except NotConnected:
            return None
        return None if self._waits[chosen] else chosen

    def choose(self) -> RedisConnection:
        """Return the connected connection with the fewest unanswered WAITs. Raise NotConnected if there is none.

        Commands that are sent over it execute only after the answers to these WAITs.
        """
        connected = [each for each in self._waits if each.is_connected]
        if not connected:
            raise NotConnected(f"no connection to {self.address.description}")
        chosen = min(connected, key=self._waits.__getitem__)
        if self._waits[chosen] and not self._opening and len(self._waits) < MAX_CONNECTIONS:
            self._open_another()
        return chosen

    async def wait_connected(self) -> None:
        """Wait until a connection is connected; open the first one if there is none."""
        if not self._waits:
            await self._open_first()
        async with trio.open_nursery() as nursery:
            for connection in self._waits:
                nursery.start_soon(self._first_connected, connection, nursery.cancel_scope)

    async def _first_connected(self, connection: RedisConnection, scope: trio.CancelScope) -> None:
        with suppress(NotConnected):  # the server has left the cluster
            await connection.wait_connected()
        scope.cancel()

    def started(self, connection: RedisConnection) -> None:
        """Count a WAIT that was sent."""
        self._waits[connection] += 1

    def ended(self, connection: RedisConnection) -> None:
        """Count a WAIT that was answered, or never will be."""
        self._waits[connection] -= 1

    def _open_another(self) -> None:
        self._opening = True
        self._tried = trio.Event()
        self.nursery.start_soon(self._hold_open)

    async def _hold_open(self) -> None:
        try:
            async with open_connection(self.address, name="wait", announce=False) as connection:
                self._waits[connection] = 0
                self._has_tried()
                await trio.sleep_forever()
        except RedisError as error:
            # The first connection was accepted; since then the password or the server has changed.
            fields = {"redis": self.address.description, "error": error}
            logger.warning("no second connection to Redis at %(redis)s: %(error)s", fields)
            self._has_tried()

    def _has_tried(self) -> None:
        self._opening = False
        self._tried.set()
