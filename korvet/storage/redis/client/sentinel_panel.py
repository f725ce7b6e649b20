"""Ask all Sentinels about a primary, over connections that stay open.

A Sentinel that does not answer is left out until a new connection to it is open, so that it delays one request only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import trio
from attrs import define, field

from korvet.storage.redis.client.address import RedisAddress, Sentinels, host_and_port
from korvet.storage.redis.client.link import Link, explain, open_link_to
from korvet.storage.redis.client.replies import Command, Reply
from korvet.storage.redis.client.sentinel import SENTINEL_LIMIT_S, UNREACHABLE, sentinel_at

logger = logging.getLogger(__name__)

CONNECT_AGAIN_S = 1.0


@define(eq=False)
class AskedSentinel:
    """One Sentinel, and the connection to it while there is one."""

    address: RedisAddress  # with all Sentinels
    host: str
    port: int
    tried: trio.Event = field(factory=trio.Event)
    _link: Link | None = None
    _lost: trio.Event = field(factory=trio.Event)
    _lock: trio.Lock = field(factory=trio.Lock)

    async def keep_connected(self) -> None:
        """Connect, and connect again after each loss, until cancelled."""
        while True:
            try:
                address = await self.address.with_current_login()
                link = await open_link_to(sentinel_at(address, self.host, self.port))
            except UNREACHABLE as error:
                fields = {"sentinel": self.name, "error": explain(error)}
                logger.debug("no connection to the Sentinel %(sentinel)s: %(error)s", fields)
            else:
                self._link, self._lost = link, trio.Event()
                self.tried.set()
                try:
                    await self._lost.wait()
                finally:
                    self._link = None
                    await link.transport.aclose()
            self.tried.set()
            await trio.sleep(CONNECT_AGAIN_S)

    @property
    def name(self) -> str:
        return host_and_port(self.host, self.port)

    async def ask(self, commands: Sequence[Command]) -> list[Reply] | None:
        """Return the replies, or None if the Sentinel does not answer in time or refuses one of the commands."""
        async with self._lock:
            link, replies = self._link, None
            if link is None:
                return None
            try:
                with trio.move_on_after(SENTINEL_LIMIT_S):
                    replies = await link.ask(commands)
            except UNREACHABLE as error:
                fields = {"sentinel": self.name, "error": explain(error)}
                logger.debug("lost the Sentinel %(sentinel)s: %(error)s", fields)
            finally:
                if (
                    replies is None
                ):  # its answer may still come, and would be taken for that to a later question
                    self._link = None
                    self._lost.set()
        for reply in replies or ():
            if isinstance(reply, Exception):
                fields = {"sentinel": self.name, "error": str(reply)}
                logger.debug("the Sentinel %(sentinel)s refuses a question: %(error)s", fields)
                return None
        return replies


@define(eq=False)
class SentinelPanel:
    """All Sentinels of an address; the connections are opened by the first request."""

    address: RedisAddress
    nursery: trio.Nursery
    _asked: Sequence[AskedSentinel] = ()

    @property
    def number(self) -> int:
        """Number of Sentinels in the address."""
        return len(cast(Sentinels, self.address.sentinels).hosts)

    async def ask(self, commands: Sequence[Command]) -> list[list[Reply]]:
        """Return the replies of each Sentinel that answers all of these commands."""
        if not self._asked:
            hosts = cast(Sentinels, self.address.sentinels).hosts
            self._asked = [AskedSentinel(self.address, host, port) for host, port in hosts]
            for each in self._asked:
                self.nursery.start_soon(each.keep_connected)
        answers: list[list[Reply]] = []
        async with trio.open_nursery() as nursery:
            for each in self._asked:
                nursery.start_soon(self._ask_one, each, commands, answers)
        return answers

    async def _ask_one(
        self, asked: AskedSentinel, commands: Sequence[Command], answers: list[list[Reply]]
    ) -> None:
        await asked.tried.wait()
        replies = await asked.ask(commands)
        if replies is not None:
            answers.append(replies)
