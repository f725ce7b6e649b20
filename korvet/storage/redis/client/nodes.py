"""The primaries of a Redis Cluster, the connections to them, and the table of slots.

The table is read again every few seconds, and soon after MOVED, CLUSTERDOWN and lost connections. A node that was cut
off from the others lists what it knew before, so a reply with a lower epoch than the known one counts only if no node
has a higher one. Connections to a node that is not a primary any more are closed, so that commands that wait for it go
to its successor.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from itertools import count, islice

import trio
from attrs import evolve

from korvet.concurrency.background import background_nursery
from korvet.storage.redis.client.address import RedisAddress, host_and_port
from korvet.storage.redis.client.connection import NotConnected, RedisConnection, is_for_good
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.link import LinkEnded, explain, open_link_to
from korvet.storage.redis.client.replies import Command, Reply
from korvet.storage.redis.client.server import ServerConnections, connections_beside
from korvet.storage.redis.client.statistics import Statistics
from korvet.storage.redis.client.topology import SLOTS, Node, Topology, node_from, parse_topology, slot_of

logger = logging.getLogger(__name__)

# The table of slots is read again after this time, and sooner while a primary is not connected.
REFRESH_EVERY_S = 2.0
REFRESH_AGAIN_S = 0.2
# A node that does not answer in this time is passed over.
ASK_LIMIT_S = 1.0
SAY_AGAIN_S = 30.0

TOPOLOGY: tuple[Command, ...] = ((b"CLUSTER", b"SLOTS"), (b"CLUSTER", b"INFO"))
UNREACHABLE = (OSError, trio.BrokenResourceError, RedisError, LinkEnded, trio.TooSlowError)


@asynccontextmanager
async def open_nodes(address: RedisAddress) -> AsyncIterator[ClusterNodes]:
    """Connect to all primaries of a cluster, and follow its changes until the block ends.

    Wait while no node is reachable. Raise RedisError (or ssl.SSLCertVerificationError) for a refusal that a later
    attempt would meet again.
    """
    async with background_nursery() as nursery:
        nodes = ClusterNodes(address, nursery)
        await nodes.open()
        nursery.start_soon(nodes.run)
        yield nodes


class ClusterNodes:
    """The primaries and their slots, opened by `open_nodes`."""

    def __init__(self, address: RedisAddress, nursery: trio.Nursery) -> None:
        self.address = address
        self._nursery = nursery
        self._servers: dict[Node, ServerConnections] = {}
        self._scopes: dict[ServerConnections, trio.CancelScope] = {}
        self._slots: list[ServerConnections | None] = [None] * SLOTS
        self._epoch = 0
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._moving = trio.Lock()
        self._said_at = -math.inf
        self._statistics: Statistics | None = None

    # --- Looking up -------------------------------------------------------------------------------------

    def servers(self) -> Collection[ServerConnections]:
        """Return the connections to all primaries."""
        return self._servers.values()

    def server_of(self, key: bytes) -> ServerConnections:
        """Return the connections to the primary that has the key. Raise NotConnected if none has it."""
        server = self._slots[slot_of(key)]
        if server is None:
            raise NotConnected(f"no node of {self.address.description} has the slot of {key!r}")
        return server

    def unassigned(self) -> int:
        """Return the number of slots without a primary."""
        return self._slots.count(None)

    async def wait_all_connected(self) -> None:
        """Wait until all present primaries are connected."""
        for server in list(self._servers.values()):
            await server.connection.wait_connected()

    def key_on(self, server: ServerConnections, name: bytes) -> bytes:
        """Return the name with the lowest number that puts the key into one of the node's slots, in braces."""
        names = (b"{%b:%d}" % (name, number) for number in count())
        # A node that has lost its last slot refuses any key.
        return next((each for each in islice(names, SLOTS) if self._slots[slot_of(each)] is server), name)

    async def wait_connected(self, key: bytes) -> None:
        """Wait until the primary that has the key is connected, whichever it is by then."""
        while True:
            changed = self._changed
            with suppress(NotConnected):
                connection = self.server_of(key).connection
                if connection.is_connected:
                    return
                self.refresh_soon()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait_then_cancel, connection, nursery.cancel_scope)
                    await changed.wait()
                    nursery.cancel_scope.cancel()
                continue
            self.refresh_soon()
            await changed.wait()

    # --- Redirections -----------------------------------------------------------------------------------

    def node_from(self, slot: int, text: str) -> Node:
        """Return the node that an answer about the slot names."""
        server = self._slots[slot]
        return node_from(text, "localhost" if server is None else server.connection.address.host)

    async def move(self, slot: int, where: str) -> None:
        """Note that the slot has moved to the node at host:port, as MOVED says; read the table of slots from that node.

        After a failover all slots of a primary have moved.
        """
        node = self.node_from(slot, where)
        async with self._moving:
            server = await self.server_at(node)
            if self._slots[slot] is server:
                return  # as another MOVED has said
            self._slots[slot] = server
            try:
                topology = await self._ask_address(node)
            except UNREACHABLE:
                self.refresh_soon()
            else:
                if topology.ranges:
                    await self._apply(topology)

    async def server_at(self, node: Node) -> ServerConnections:
        """Return the connections to a node; begin to open them if it is new."""
        server = self._servers.get(node)
        if server is None:
            server = await self._nursery.start(self._hold, node)
        return server

    # --- Connections ------------------------------------------------------------------------------------

    def count_in(self, statistics: Statistics) -> None:
        """Count round trips and lost connections to all nodes from now on."""
        self._statistics = statistics
        for server in self._servers.values():
            server.count_in(statistics)

    async def _hold(self, node: Node, *, task_status: trio.TaskStatus[ServerConnections]) -> None:
        """Keep the connections to a node until it is left."""
        address = self.address.of_node(*node)
        named = evolve(address, client_name=address.client_name or "korvet")
        async with trio.open_nursery() as nursery:
            server = connections_beside(RedisConnection(named), nursery)
            if self._statistics is not None:
                server.count_in(self._statistics)
            if node in self._servers:  # another task has opened it meanwhile
                task_status.started(self._servers[node])
                return
            self._servers[node] = server
            self._scopes[server] = nursery.cancel_scope
            task_status.started(server)
            await server.connection.stay_connected()

    def _leave(self, node: Node) -> None:
        """Close the connections to a node that is not a primary any more."""
        server = self._servers.pop(node)
        server.leave("it is not a primary of the cluster any more")
        self._scopes.pop(server).cancel()

    # --- The table of slots -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the table of slots from the nodes in the URL; keep trying while none of them is reachable."""
        while True:
            causes = []
            for node in self.address.nodes:
                try:
                    topology = await self._ask_address(node)
                except UNREACHABLE as error:
                    if is_for_good(error):
                        raise
                    causes.append(f"{host_and_port(*node)}: {explain(error)}")
                else:
                    if topology.ranges:
                        await self._apply(topology)
                        return
                    causes.append(f"{host_and_port(*node)}: no node has slots")
            self._say("; ".join(causes))
            await trio.sleep(REFRESH_AGAIN_S)

    def refresh_soon(self) -> None:
        """Let the table of slots be read again without waiting for the next time."""
        self._wanted.set()

    async def run(self) -> None:
        """Keep the table of slots up to date, until cancelled."""
        while True:
            all_connected = all(server.connection.is_connected for server in self._servers.values())
            with trio.move_on_after(REFRESH_EVERY_S if all_connected else REFRESH_AGAIN_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            if (topology := await self._read()) is not None:
                await self._apply(topology)
            await trio.sleep(REFRESH_AGAIN_S)

    async def _read(self) -> Topology | None:
        """Return the table of slots of the first node that is not behind; else the best one, or None."""
        found: list[Topology] = []
        for node in dict.fromkeys([*self._servers, *self.address.nodes]):
            server = self._servers.get(node)
            try:
                if server is not None and server.connection.is_connected:
                    topology = await self._ask_server(server)
                else:
                    topology = await self._ask_address(node)
            except UNREACHABLE as error:
                fields = {"redis": host_and_port(*node), "error": explain(error)}
                logger.debug("cannot read the slots from %(redis)s: %(error)s", fields)
                continue
            if topology.ranges:
                found.append(topology)
                if topology.is_ok and topology.epoch >= self._epoch:
                    break
        return max(found, key=lambda each: (each.is_ok, each.epoch), default=None)

    async def _ask_server(self, server: ServerConnections) -> Topology:
        with trio.fail_after(ASK_LIMIT_S):
            replies = await server.connection.pipeline(TOPOLOGY)
        return self._topology(replies, server.connection.address.host)

    async def _ask_address(self, node: Node) -> Topology:
        """Ask a node over a new connection."""
        address = await self.address.of_node(*node).with_current_login()
        link = await open_link_to(evolve(address, connect_limit_s=min(address.connect_limit_s, ASK_LIMIT_S)))
        try:
            with trio.fail_after(ASK_LIMIT_S):
                replies = await link.ask(TOPOLOGY)
        finally:
            await link.transport.aclose()
        return self._topology(replies, node[0])

    @staticmethod
    def _topology(replies: list[Reply], asked_host: str) -> Topology:
        slots, info = replies
        return parse_topology(slots, info, asked_host)

    async def _apply(self, topology: Topology) -> None:
        """Connect to new primaries, replace the table of slots, and leave nodes that are not primaries any more."""
        self._epoch = topology.epoch
        servers = {node: await self.server_at(node) for node in topology.nodes}
        before = self._slots
        self._slots = [None] * SLOTS
        for first, last, node in topology.ranges:
            self._slots[first : last + 1] = [servers[node]] * (last + 1 - first)
        left = [node for node in self._servers if node not in servers]
        for node in left:
            self._leave(node)
        if self._slots != before or left:
            self._changed.set()
            self._changed = trio.Event()
        if left:
            names = ", ".join(host_and_port(*node) for node in sorted(servers))
            logger.info(
                "the primaries of %(redis)s are %(primaries)s",
                {"redis": self.address.description, "primaries": names},
            )

    def _say(self, cause: str) -> None:
        now = trio.current_time()
        if now >= self._said_at + SAY_AGAIN_S:
            self._said_at = now
            fields = {"redis": self.address.description, "error": cause}
            logger.warning("cannot reach Redis at %(redis)s: %(error)s; trying again", fields)


async def wait_then_cancel(connection: RedisConnection, scope: trio.CancelScope) -> None:
    """Cancel the scope when there is a connection, or none any more."""
    with suppress(NotConnected):
        await connection.wait_connected()
    scope.cancel()
