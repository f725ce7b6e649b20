"""Servers that lose acknowledged records themselves: by eviction, by being emptied, or with an unwritable file."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import StorageUsageError, TopicPartition
from korvet.storage.redis.failover.guard import eviction, failing_file
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.records import Record, append, batch
from tests.servers import RedisServer

TP = TopicPartition("orders", 0)
EVICTING = {"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}
SAFE = {"maxmemory": "0", "maxmemory-policy": "noeviction"}


@pytest.mark.parametrize(
    "limit, policy, may_evict",
    [
        (b"0", b"allkeys-lru", False),
        (b"1000", b"noeviction", False),
        (b"1000", b"volatile-ttl", False),
        (b"1000", b"allkeys-lru", True),
        (b"1000", b"allkeys-random", True),
    ],
)
def test_maxmemory_with_an_allkeys_policy_is_eviction(limit: bytes, policy: bytes, may_evict: bool) -> None:
    found = eviction({b"maxmemory": limit, b"maxmemory_policy": policy})

    assert may_evict == (found is not None)


def test_failed_append_only_file_is_detected() -> None:
    assert failing_file({b"aof_enabled": b"1", b"aof_last_write_status": b"ok"}) is None
    assert failing_file({b"aof_enabled": b"0", b"aof_last_write_status": b"err"}) is None
    assert failing_file({b"aof_enabled": b"1", b"aof_last_write_status": b"err"}) is not None


@pytest.fixture
def settings(client: redis.Redis) -> Iterator[redis.Redis]:
    """The server's own settings, which are restored at the end."""
    yield client
    configure(client, SAFE)


def configure(client: redis.Redis, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        client.config_set(name, value)


async def check(storage: RedisStreamsStorage) -> None:
    """Run the check that is due every few seconds."""
    await storage.monitor.check()


@pytest.mark.servers
async def test_server_with_eviction_is_refused_unless_allowed(
    redis_server: RedisServer, settings: redis.Redis
) -> None:
    configure(settings, EVICTING)
    with pytest.raises(StorageUsageError, match=r"allkeys-lru.*noeviction.*redis\.allow\.eviction=true"):
        async with open_redis_storage(redis_server.url):
            pass
    async with open_redis_storage(redis_server.url, allow_eviction=True) as storage:
        await storage.create_topic("orders", 1, {})
        await check(storage)
        await append(storage, TP, [Record(b"accepted")])


@pytest.mark.servers
async def test_appends_are_refused_when_eviction_is_enabled_later(
    redis_server: RedisServer, settings: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {})
        configure(settings, EVICTING)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await check(storage)
                result = (await storage.append({TP: batch([Record(b"refused")])}))[TP]
                assert isinstance(result, KafkaStorageError)
            refusals = [each for each in caplog.records if each.levelno == logging.ERROR]
            configure(settings, SAFE)
            await check(storage)
            await append(storage, TP, [Record(b"accepted")])

    assert 1 == len(refusals)
    assert "allkeys-lru" in refusals[0].getMessage()
    assert 1 == settings.xlen("korvet:orders:0")


@pytest.mark.servers
async def test_evicted_keys_are_logged_after_the_policy_was_corrected(
    redis_server: RedisServer, settings: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        for number in range(100):
            settings.set(f"filler{number}", bytes(10_000))
        configure(settings, {"maxmemory-policy": "allkeys-random", "maxmemory": "1"})
        settings.get("filler0")
        while not settings.info("stats")["evicted_keys"]:
            settings.ping()
        configure(settings, SAFE)
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                await check(storage)

    assert 1 == len([each for each in caplog.records if "has evicted" in each.getMessage()])


@pytest.mark.servers
async def test_flushed_server_is_logged(
    redis_server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {})
        await storage.topics()
        client.flushall()
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await check(storage)
        topics = dict(await storage.topics())

    assert 1 == len([each for each in caplog.records if "was emptied" in each.getMessage()])
    assert b"1" == client.get("korvet:$format")
    assert {} == topics


@pytest.mark.servers
async def test_one_connection_looks_at_the_server(redis_server: RedisServer, client: redis.Redis) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        before = client.info("stats")["total_connections_received"]
        asked = [each.run_id for each in storage._redis.server_of(b"").opened()]
        await check(storage)
        after = client.info("stats")["total_connections_received"]

    assert 1 == after - before
    assert [client.info("server")["run_id"].encode()] * 2 == asked
