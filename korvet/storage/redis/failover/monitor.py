"""Look at each server every few seconds, over a new connection to its address.

The new connection shows where the address leads. After a failover the address (a name, a virtual address, a link to a
socket) leads to the promoted replica. The old primary may keep running, cut off from the system that promoted the
replica. It still answers a broker that stays connected to it, and records that the broker writes there are lost. The
monitor therefore compares the `run_id` of the server at the address with the `run_id` of each open connection.

Over the same connection it notices that the server was emptied, and asks for what `Guard` judges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import NotConnected, RedisConnection, RedisUnavailable
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.link import Link, LinkEnded, explain
from korvet.storage.redis.client.sentinel import open_link
from korvet.storage.redis.client.server import ServerConnections
from korvet.storage.redis.failover.guard import Guard
from korvet.storage.redis.keys import FORMAT, Keyspace

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
IS_PRIMARY = b"role:master"


@define(eq=False)
class Monitors:
    """A monitor for each server. `emptied` is called after FLUSHALL on the one that has the version of the format."""

    redis: RedisCaller
    keyspace: Keyspace
    allow_eviction: bool
    emptied: Callable[[], None]
    _monitors: dict[ServerConnections, ServerMonitor] = field(factory=dict)

    async def begin(self) -> None:
        """Raise StorageUsageError if a server may evict records and the settings do not allow that."""
        for server in list(self.redis.servers()):
            with suppress(NotConnected):  # the node has left the cluster meanwhile
                await self._monitor(server).guard.begin(server.connection)

    def refusal(self, key: bytes) -> KafkaError | None:
        """Return the error for appends to a stream whose server would lose records, or None."""
        try:
            monitor = self._monitors.get(self.redis.server_of(key))
        except RedisUnavailable:
            return None
        return None if monitor is None else monitor.guard.refusal

    def check_soon(self) -> None:
        """Let `run` check the servers without waiting for the next time."""
        for monitor in self._monitors.values():
            monitor.check_soon()

    async def check(self) -> None:
        """Check all servers once."""
        for server in list(self.redis.servers()):
            await self._monitor(server).check()

    async def run(self) -> None:
        """Check the servers every few seconds, each in its own task, until cancelled."""
        async with trio.open_nursery() as nursery:
            watched: dict[ServerConnections, trio.CancelScope] = {}
            while True:
                servers = set(self.redis.servers())
                for server in servers - watched.keys():
                    watched[server] = trio.CancelScope()
                    nursery.start_soon(self._run_one, server, watched[server])
                for server in watched.keys() - servers:
                    watched.pop(server).cancel()
                    self._monitors.pop(server, None)
                await trio.sleep(CHECK_EVERY_S)

    async def _run_one(self, server: ServerConnections, scope: trio.CancelScope) -> None:
        with scope:
            await self._monitor(server).run()

    def _monitor(self, server: ServerConnections) -> ServerMonitor:
        monitor = self._monitors.get(server)
        if monitor is None:
            monitor = self._monitors[server] = ServerMonitor(
                server.connection.address,
                server.opened,
                Guard(self.allow_eviction),
                self.keyspace,
                self.emptied,
            )
        return monitor


@define(eq=False)
class ServerMonitor:
    """Task that checks the server at an address. It calls `emptied` after FLUSHALL."""

    address: RedisAddress
    connections: Callable[[], Iterable[RedisConnection]]
    guard: Guard
    keyspace: Keyspace
    emptied: Callable[[], None]
    _wanted: trio.Event = field(factory=trio.Event)

    def check_soon(self) -> None:
        """Let `run` check the server without waiting for the next time."""
        self._wanted.set()

    async def run(self) -> None:
        """Check the server every few seconds, until cancelled."""
        while True:
            with trio.move_on_after(CHECK_EVERY_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self.check()

    async def check(self) -> None:
        """Check the server once. Without an answer, wait for the next time."""
        try:
            with trio.move_on_after(self.address.answer_limit_s):
                link = await open_link(self.address)
                try:
                    await self._check(link)
                finally:
                    await link.transport.aclose()
        except (OSError, trio.BrokenResourceError, RedisError, LinkEnded) as error:
            fields = {"redis": self.address.description, "error": explain(error)}
            logger.debug("cannot check the server at %(redis)s: %(error)s", fields)

    async def _check(self, link: Link) -> None:
        role, stored, *infos = await link.ask(
            [
                (b"INFO", b"replication"),
                (b"GET", self.keyspace.format),
                *self.guard.commands,
            ]
        )
        # A replica may not be promoted yet. Connections to it would be closed again because it is read-only.
        if isinstance(role, bytes) and IS_PRIMARY not in role:
            return
        self._leave_other_servers(link.peer.run_id)
        if stored is None:
            await self._restore_format(link)
        self.guard.judge(infos, self.address.description)

    def _leave_other_servers(self, run_id: bytes) -> None:
        """End the connections to servers with another `run_id`, if the Redis user may send INFO."""
        if not run_id:
            return
        cause = "its address leads to another server"
        left = [each for each in self.connections() if each.leave_other_servers(run_id, cause)]
        if left:
            logger.error(
                "%(redis)s leads to another server than before; records that this broker wrote to the old one since"
                " then are lost, except those that the new one has confirmed",
                {"redis": self.address.description},
            )

    async def _restore_format(self, link: Link) -> None:
        logger.error(
            "Redis at %(redis)s was emptied (FLUSHALL, FLUSHDB, or a start without its data):"
            " all topics, records and committed offsets are lost",
            {"redis": self.address.description},
        )
        await link.ask([(b"SET", self.keyspace.format, FORMAT, b"NX")])
        self.emptied()
