"""The connections to one server: the first one, one for large commands, and those that wait for replicas.

Appends and rounds of confirmations wait over separate connections. An append waits as long as its client allows, and a
round behind it on the same connection would take as long.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio
from attrs import define, field

from korvet.storage.redis.client.bulk import LARGE_BYTES, BulkConnection
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.statistics import Statistics
from korvet.storage.redis.client.wait_connections import WaitingConnections

# The time for which a caller waits for a connection.
PATIENCE_S = 5.0


@define(eq=False)
class ServerConnections:
    """The connections to one server that several tasks share."""

    connection: RedisConnection
    bulk: BulkConnection
    waiting: WaitingConnections  # for appends
    confirming: WaitingConnections  # for rounds
    watching: set[RedisConnection] = field(factory=set)  # those that block in XREAD

    def for_size(self, size: float) -> RedisConnection:
        """Return the connection for a command, or a reply, of about `size` bytes."""
        if size >= LARGE_BYTES:
            return self.bulk.connected() or self.connection
        return self.connection

    def opened(self) -> Iterator[RedisConnection]:
        """Yield all connections, up or not."""
        yield self.connection
        yield from self.watching
        yield from self.bulk.opened()
        yield from self.waiting.opened()
        yield from self.confirming.opened()

    def leave(self, cause: str) -> None:
        """End the present links of all connections."""
        for each in tuple(self.opened()):
            each.end(cause)

    def count_in(self, statistics: Statistics) -> None:
        """Count round trips and lost connections from now on."""
        self.bulk.statistics = statistics
        self.connection.count_in(statistics)


def connections_beside(connection: RedisConnection, nursery: trio.Nursery) -> ServerConnections:
    """Return the connections to the server of a first one. The nursery runs those that are opened when needed."""
    address = connection.address
    return ServerConnections(
        connection,
        BulkConnection(address, nursery),
        waiting=WaitingConnections(address, nursery, PATIENCE_S),
        confirming=WaitingConnections(address, nursery, PATIENCE_S),
    )
