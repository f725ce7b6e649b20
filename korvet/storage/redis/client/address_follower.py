"""Follow the address to another server, although the connections to the old one are intact.

After a failover the address (a name, a virtual address, a link to a socket) leads to the promoted replica. The old
primary may keep running, cut off from the system that promoted the replica. It still answers a broker that stays
connected to it, and records that the broker writes there are lost. The broker therefore connects to the address again
every few seconds, and compares the `run_id` of the server there with the `run_id` of each of its connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import trio
from attrs import define

from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.link import LinkEnded, explain, open_link

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
IS_PRIMARY = b"role:master"


@define(eq=False)
class AddressFollower:
    """Task that ends connections to a server that the address no longer leads to."""

    address: RedisAddress
    connections: Callable[[], Iterable[RedisConnection]]

    async def run(self) -> None:
        """Check the address every few seconds, until cancelled."""
        while True:
            await trio.sleep(CHECK_EVERY_S)
            await self.check()

    async def check(self) -> None:
        """Check the address once."""
        try:
            link = await open_link(self.address)
            try:
                (info,) = await link.ask([(b"INFO", b"replication")])
            finally:
                await link.transport.aclose()
        except (OSError, trio.BrokenResourceError, RedisError, LinkEnded) as error:
            logger.debug("cannot check the server at %s: %s", self.address.description, explain(error))
            return
        # A replica may not be promoted yet. Connections to it would be closed again because it is read-only.
        if not link.peer.run_id or not isinstance(info, bytes) or IS_PRIMARY not in info:
            return
        cause = "its address leads to another server"
        left = [each for each in self.connections() if each.leave_other_servers(link.peer.run_id, cause)]
        if left:
            logger.error(
                "%s leads to another server than before; records that this broker wrote to the old one since then"
                " are lost, unless min.insync.replicas is above 1",
                self.address.description,
            )
