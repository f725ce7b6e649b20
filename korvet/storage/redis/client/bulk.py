"""A second connection, for large commands and replies.

A server answers a connection's commands one after the other, and a megabyte takes it and the network some milliseconds.
Large appends and large reads therefore use a separate connection, so that small commands do not wait for them. It is
opened for the first large command. While it is unavailable, all commands use the first connection.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio
from attrs import define

from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.connection import RedisConnection, open_connection
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.statistics import Statistics

logger = logging.getLogger(__name__)

# A command or a reply of at least this size is large.
LARGE_BYTES = 64 * 1024


@define(eq=False)
class BulkConnection:
    """One connection to a server, opened on first use."""

    address: RedisAddress
    nursery: trio.Nursery
    statistics: Statistics | None = None
    _connection: RedisConnection | None = None
    _is_tried: bool = False

    def connected(self) -> RedisConnection | None:
        """Return the connection if it is up, else None. The first call starts to open it."""
        if not self._is_tried and not self.nursery.cancel_scope.cancel_called:
            self._is_tried = True
            self.nursery.start_soon(self._hold_open)
        connection = self._connection
        return connection if connection is not None and connection.is_connected else None

    def opened(self) -> Sequence[RedisConnection]:
        """Return the connection, up or not; nothing before its first use."""
        return () if self._connection is None else (self._connection,)

    async def _hold_open(self) -> None:
        try:
            async with open_connection(self.address, name="bulk", announce=False) as self._connection:
                if self.statistics is not None:
                    self._connection.count_in(self.statistics)
                await trio.sleep_forever()
        except RedisError as error:
            # The first connection was accepted: since then the server has reached maxclients, or the password changed.
            fields = {"redis": self.address.description, "error": error}
            logger.warning(
                "no connection for large records to Redis at %(redis)s: %(error)s; they go over the first one",
                fields,
            )
        finally:
            self._connection = None
