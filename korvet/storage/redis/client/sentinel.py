"""Find the primary: at the address itself, or by asking Sentinels.

Sentinels are asked in turn at every connection, so a promotion is followed by connecting again. A Sentinel that was cut
off from the others may name a server that was demoted meanwhile; a server is therefore used only if its ROLE is master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import cycle
from typing import cast

import trio
from attrs import define, evolve

from korvet.storage.redis.client.address import RedisAddress, Sentinels, host_and_port
from korvet.storage.redis.client.errors import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from korvet.storage.redis.client.link import UNKNOWN, Link, LinkEnded, Peer, explain, open_link_to
from korvet.storage.redis.client.replies import Reply

logger = logging.getLogger(__name__)

# A Sentinel that does not answer in this time is passed over.
SENTINEL_LIMIT_S = 1.0
# A subscription is silent until a failover; a PING after this time detects a Sentinel that is gone.
PING_EVERY_S = 10.0
SUBSCRIBE_AGAIN_S = 1.0

UNREACHABLE = (OSError, trio.BrokenResourceError, RedisError, LinkEnded)


async def open_link(address: RedisAddress, previous: Peer = UNKNOWN) -> Link:
    """Connect to the address, or to the primary that its Sentinels name, as `open_link_to` does.

    Raise OSError, trio.BrokenResourceError, LinkEnded, or the error reply of a server that refuses the login or is
    loading.
    """
    address = await address.with_current_login()
    if address.sentinels is None:
        return await open_link_to(address, previous)
    causes: list[str] = []
    refusals: list[Exception] = []
    for host, port in address.sentinels.hosts:
        try:
            return await open_primary(address, address.sentinels, sentinel_at(address, host, port), previous)
        except UNREACHABLE as error:
            causes.append(f"{host_and_port(host, port)}: {explain(error)}")
            refusals.append(error)
    if all(isinstance(error, ResponseError | AuthenticationError) for error in refusals):
        raise type(refusals[0])("; ".join(causes))
    raise LinkEnded("no Sentinel leads to a primary: " + "; ".join(causes))


def sentinel_at(address: RedisAddress, host: str, port: int) -> RedisAddress:
    """Return the address of one Sentinel."""
    sentinels = cast(Sentinels, address.sentinels)
    return evolve(
        address,
        host=host,
        port=port,
        db=0,
        username=sentinels.username,
        password=sentinels.password,
        protocol=2,
        connect_limit_s=min(address.connect_limit_s, SENTINEL_LIMIT_S),
        sentinels=None,
    )


async def open_primary(
    address: RedisAddress, sentinels: Sentinels, asked: RedisAddress, previous: Peer
) -> Link:
    """Connect to the primary that one Sentinel names."""
    host, port = await named_primary(asked, sentinels.name)
    primary = host_and_port(host, port)
    try:
        link = await open_link_to(evolve(address, host=host, port=port, sentinels=None), previous)
    except UNREACHABLE as error:
        if isinstance(error, AuthenticationError | NoPermissionError):
            raise
        raise LinkEnded(f"the primary {primary}: {explain(error)}") from error
    try:
        with trio.fail_after(address.connect_limit_s):
            (role,) = await link.ask([(b"ROLE",)])
        if isinstance(role, Exception):
            raise role
        if cast(list[Reply], role)[0] != b"master":
            raise LinkEnded(f"{primary} is not the primary any more")
    except trio.TooSlowError:
        await link.transport.aclose()
        raise LinkEnded(f"the primary {primary} does not answer") from None
    except BaseException:
        await link.transport.aclose()
        raise
    link.primary = primary
    link.read_only_after_s = 0.0
    return link


async def named_primary(sentinel: RedisAddress, name: str) -> tuple[str, int]:
    """Ask a Sentinel for the primary's host and port."""
    link = await open_link_to(sentinel)
    try:
        with trio.fail_after(SENTINEL_LIMIT_S):
            (reply,) = await link.ask([(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name)])
    except trio.TooSlowError:
        raise LinkEnded("it does not answer") from None
    finally:
        await link.transport.aclose()
    if isinstance(reply, Exception):
        raise reply
    if reply is None:
        raise ResponseError(f"it monitors no primary named {name!r}")
    host, port = cast(list[bytes], reply)
    return host.decode(), int(port)


@define(eq=False)
class SentinelWatch:
    """Task that calls `switched` when a Sentinel reports another primary, and after each new subscription."""

    address: RedisAddress
    switched: Callable[[], None]

    async def run(self) -> None:
        """Keep a subscription at one of the Sentinels, until cancelled; without Sentinels, return."""
        hosts = () if self.address.sentinels is None else self.address.sentinels.hosts
        for host, port in cycle(hosts):
            address = await self.address.with_current_login()
            try:
                await self._follow(sentinel_at(address, host, port))
            except (*UNREACHABLE, trio.TooSlowError) as error:
                fields = {"sentinel": host_and_port(host, port), "error": explain(error)}
                logger.debug("cannot follow the Sentinel %(sentinel)s: %(error)s", fields)
            await trio.sleep(SUBSCRIBE_AGAIN_S)

    async def _follow(self, sentinel: RedisAddress) -> None:
        link = await open_link_to(sentinel)
        try:
            with trio.fail_after(SENTINEL_LIMIT_S):
                (reply,) = await link.ask([(b"SUBSCRIBE", b"+switch-master")])
            if isinstance(reply, Exception):
                raise reply
            self.switched()
            while True:
                with trio.move_on_after(PING_EVERY_S) as silence:
                    await link.next_reply()
                    self.switched()
                if silence.cancelled_caught:
                    with trio.fail_after(SENTINEL_LIMIT_S):
                        await link.ask([(b"PING",)])
        finally:
            await link.transport.aclose()
