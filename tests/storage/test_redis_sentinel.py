"""Connections to the primary that Sentinels name; the Sentinels are scripted, the servers real."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import pytest
import trio

from korvet.storage.redis.client.address import parse_address
from korvet.storage.redis.client.connection import open_connection
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.sentinel import SentinelWatch, open_link
from tests.sentinels import scripted_sentinel, sentinel_url
from tests.servers import ServerPair, free_port


async def test_demoted_primary_and_absent_sentinels_are_passed_over(replica_pair: ServerPair) -> None:
    primary, replica = replica_pair
    async with AsyncExitStack() as stack:
        stale = await stack.enter_async_context(scripted_sentinel(lambda: replica.port))
        right = await stack.enter_async_context(scripted_sentinel(lambda: primary.port))
        async with open_connection(sentinel_url(free_port(), stale, right)) as redis:
            await redis.execute(b"SET", b"a", b"1")

    with primary.client() as client:
        assert b"1" == client.get("a")


async def test_connection_waits_until_a_sentinel_names_a_primary(
    replica_pair: ServerPair, caplog: pytest.LogCaptureFixture
) -> None:
    primary, replica = replica_pair
    named = replica.port
    missed = trio.Event()
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(lambda record: missed.set() or True)

    async def promote() -> None:
        nonlocal named
        await missed.wait()
        named = primary.port

    with trio.fail_after(20):
        async with scripted_sentinel(lambda: named) as port, trio.open_nursery() as nursery:
            nursery.start_soon(promote)
            async with open_connection(sentinel_url(port)) as redis:
                assert b"PONG" == await redis.execute(b"PING")

    where = f"Redis at {sentinel_url(port)}"
    assert f"cannot reach {where}: no Sentinel leads to a primary: 127.0.0.1:{port}: " in caplog.text
    assert f"127.0.0.1:{replica.port} is not the primary any more" in caplog.text
    assert f"connected to {where}, whose primary is 127.0.0.1:{primary.port}" in caplog.text


async def test_unknown_name_is_refused() -> None:
    async with scripted_sentinel(lambda: None) as port:
        with trio.fail_after(10), pytest.raises(RedisError, match="it monitors no primary named 'mymaster'"):
            async with open_connection(sentinel_url(port)):
                pass


async def test_primary_that_becomes_a_replica_is_left(replica_pair: ServerPair) -> None:
    primary, replica = replica_pair
    named = primary.port
    async with scripted_sentinel(lambda: named) as port, open_connection(sentinel_url(port)) as redis:
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        with primary.client() as client:
            client.replicaof("127.0.0.1", replica.port)
        named = replica.port
        with pytest.raises(RedisError):
            await redis.execute(b"SET", b"a", b"1")
        with trio.fail_after(20):
            await redis.execute(b"SET", b"b", b"2", repeatable=True)

    with replica.client() as client:
        assert [None, b"2"] == client.mget("a", "b")


async def test_watch_notifies_after_subscribing_and_at_each_failover() -> None:
    notices = trio.open_memory_channel[None](10)
    with trio.fail_after(20):
        async with scripted_sentinel(lambda: None) as port, trio.open_nursery() as nursery:
            address = parse_address(sentinel_url(free_port(), port))
            nursery.start_soon(SentinelWatch(address, lambda: notices[0].send_nowait(None)).run)
            for _ in range(2):
                await notices[1].receive()
            nursery.cancel_scope.cancel()


async def test_silent_sentinel_is_passed_over(replica_pair: ServerPair) -> None:
    primary, _ = replica_pair
    silent = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with scripted_sentinel(lambda: primary.port) as port, silent[0]:
        address = parse_address(sentinel_url(silent[0].socket.getsockname()[1], port))
        with trio.fail_after(10):
            link = await open_link(address)
        await link.transport.aclose()

    assert f"127.0.0.1:{primary.port}" == link.primary
