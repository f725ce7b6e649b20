"""A further connection, for what is large.

A server answers a connection's commands one after the other, and a megabyte takes it and the wire some milliseconds. So
large appends, and reads of much, go over a connection of their own, which is opened when the first of them comes: what
is small overtakes them. Nothing depends on it: while it cannot be had, everything goes over the first connection.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio
from attrs import define

from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.connection import RedisConnection, open_connection
from korvet.storage.redis.client.errors import RedisError

logger = logging.getLogger(__name__)

# From so many bytes on a command, or its reply, is large.
LARGE_BYTES = 64 * 1024


@define(eq=False)
class BulkConnection:
    """One connection to a server, once it was asked for."""

    address: RedisAddress
    nursery: trio.Nursery
    _connection: RedisConnection | None = None
    _is_tried: bool = False

    def connected(self) -> RedisConnection | None:
        """The connection, if it is up. The first to ask has it opened."""
        if not self._is_tried and not self.nursery.cancel_scope.cancel_called:
            self._is_tried = True
            self.nursery.start_soon(self._hold_open)
        connection = self._connection
        return connection if connection is not None and connection.is_connected else None

    def opened(self) -> Sequence[RedisConnection]:
        """Return the connection, up or not, or nothing before it was asked for."""
        return () if self._connection is None else (self._connection,)

    async def _hold_open(self) -> None:
        try:
            async with open_connection(self.address, name="bulk", announce=False) as self._connection:
                await trio.sleep_forever()
        except RedisError as error:
            # The first connection got in: there may be too many by now, or somebody has changed the password.
            logger.warning(
                "no connection for large records to Redis at %s: %s; they go over the first one",
                self.address.description,
                error,
            )
        finally:
            self._connection = None
