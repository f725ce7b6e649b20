"""The catalogue of topics in Redis: its cache while Redis is unavailable, and concurrent requests for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import trio

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.contract.base import eventually
from korvet.testing.records import append, numbered
from tests.servers import RedisServer

pytestmark = pytest.mark.servers


@pytest.fixture
async def storage(durable_server: RedisServer) -> AsyncIterator[RedisStreamsStorage]:
    async with open_redis_storage(durable_server.url) as storage:
        storage._catalogue.redis.patience_s = 0.2
        yield storage


async def is_disconnected(storage: RedisStreamsStorage) -> None:
    """Return once the broker has noticed."""
    with trio.fail_after(5):
        while storage._catalogue.redis.is_connected(b"korvet:$topics"):
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_known_topics_are_returned_while_redis_is_unavailable(
    storage: RedisStreamsStorage, durable_server: RedisServer, how: str
) -> None:
    topic = await storage.create_topic("orders", 1, {})
    await storage.topics()
    storage._changed(None)
    if how == "killed":
        durable_server.kill()
        await is_disconnected(storage)
    else:
        durable_server.pause()
    try:
        found = await storage.topic("orders")
        by_id = await storage.topic_by_id(topic.topic_id)
        listed = dict(await storage.topics())
        with pytest.raises(KafkaStorageError):
            await storage.topic("others")
    finally:
        if how == "paused":
            durable_server.resume()

    assert (topic, topic, {"orders": topic}) == (found, by_id, listed)


async def test_incomplete_topic_list_is_not_returned(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    await storage.create_topic("orders", 1, {})
    storage._changed(None)
    durable_server.kill()
    await is_disconnected(storage)

    with pytest.raises(KafkaStorageError):
        await storage.topics()


async def test_topic_deleted_while_redis_was_unavailable_is_unknown(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    topic = await storage.create_topic("orders", 1, {})
    await storage.topics()
    storage._changed(None)
    with durable_server.client() as client:
        client.hdel("korvet:$topics", "orders")
    found = await storage.topic("orders")
    storage._changed(None)
    durable_server.kill()
    await is_disconnected(storage)

    assert (None, {}) == (found, dict(await storage.topics()))
    with pytest.raises(KafkaStorageError):
        await storage.topic("orders")
    assert "orders" == topic.name


async def test_topic_can_be_deleted_on_a_full_server(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    tp = TopicPartition("orders", 0)
    topic = await storage.create_topic("orders", 1, {})
    await append(storage, tp, numbered(10))
    await storage.ack("g", {tp: OffsetAndMetadata(3)})
    with durable_server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        try:
            await storage.delete_topic(topic)
        finally:
            client.config_set("maxmemory", "0")
        left = [key for key in client.keys("*") if b"orders" in key]

        async def fields() -> list[bytes]:
            found: list[bytes] = client.hkeys("korvet:$group:g")
            return found

        await eventually(fields, [])

    assert ([], {}) == (left, dict(await storage.topics()))


class Late:
    """A connection that delays the replies to one command, as for a task that is scheduled last."""

    def __init__(self, storage: RedisStreamsStorage, command: bytes) -> None:
        self.redis: Any = storage._catalogue.redis
        self.command = command
        self.answered = trio.Event()
        self.taken_up = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.redis, name)

    async def execute(self, *command: Any, repeatable: bool = False) -> Any:
        reply = await self.redis.execute(*command, repeatable=repeatable)
        if command[0] == self.command and not self.answered.is_set():
            self.answered.set()
            await self.taken_up.wait()
        return reply


async def test_topic_created_while_the_list_is_read_is_included(storage: RedisStreamsStorage) -> None:
    late: Any = Late(storage, b"HGETALL")
    storage._catalogue.redis = late
    storage._watcher._changed = lambda _: None  # word of it may come later, too
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.topics)
        await late.answered.wait()
        await storage.create_topic("orders", 1, {})
        late.taken_up.set()

    assert ["orders"] == list(await storage.topics())


async def test_topic_created_during_its_lookup_is_found(storage: RedisStreamsStorage) -> None:
    late: Any = Late(storage, b"HGET")
    found = []

    async def look() -> None:
        found.append(await storage.topic("orders"))

    storage._catalogue.redis = late
    storage._watcher._changed = lambda _: None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await late.answered.wait()
        topic = await storage.create_topic("orders", 1, {})
        late.taken_up.set()

    assert [topic] == found


def calls(server: RedisServer, command: str) -> int:
    """Return how often clients have sent that command."""
    with server.client() as client:
        stats: dict[str, int] = client.info("commandstats").get(f"cmdstat_{command}", {})
        return stats.get("calls", 0)


async def partitions_by_name(storage: RedisStreamsStorage) -> dict[str, int]:
    return {name: topic.partitions for name, topic in (await storage.topics()).items()}


async def test_alteration_makes_brokers_read_only_that_topic(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    kept = [await storage.create_topic(f"kept-{number}", 1, {}) for number in range(3)]
    async with open_redis_storage(durable_server.url) as other:
        await storage.topics()
        await other.topics()
        before = calls(durable_server, "hgetall")
        created = await storage.create_topic("orders", 1, {})
        await storage.alter_topic(kept[0], partitions=2)
        await storage.delete_topic(kept[1])
        expected = {"kept-0": 2, "kept-2": 1, "orders": 1}

        for each in (storage, other):
            await eventually(partial(partitions_by_name, each), expected)
        assert created == (await other.topics())["orders"]
        assert (await other.topics())["kept-2"] is (await other.topics())["kept-2"]
    assert before == calls(durable_server, "hgetall")


async def test_lookup_of_an_unknown_topic_id_does_not_read_all_topics(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    await storage.create_topic("orders", 1, {})
    await storage.topics()
    before = calls(durable_server, "hgetall")

    assert await storage.topic_by_id(uuid4()) is None
    assert before == calls(durable_server, "hgetall")


async def test_topic_id_is_found_when_its_creation_was_not_announced(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    await storage.topics()
    storage._watcher._changed = lambda _: None
    async with open_redis_storage(durable_server.url) as other:
        topic = await other.create_topic("orders", 1, {})

    assert topic == await storage.topic_by_id(topic.topic_id)


async def test_topic_deleted_while_the_list_is_read_is_excluded(storage: RedisStreamsStorage) -> None:
    topic = await storage.create_topic("orders", 1, {})
    storage._changed(None)
    late: Any = Late(storage, b"HGETALL")
    storage._catalogue.redis = late
    storage._watcher._changed = lambda _: None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.topics)
        await late.answered.wait()
        await storage.delete_topic(topic)
        late.taken_up.set()

    assert await storage.topic("orders") is None
    assert not await storage.topics()


async def test_deletion_does_not_wait_for_group_cleanup(storage: RedisStreamsStorage) -> None:
    topic = await storage.create_topic("orders", 1, {})
    tp = TopicPartition("orders", 0)
    await storage.ack("g", {tp: OffsetAndMetadata(3)})
    late: Any = Late(storage, b"SMEMBERS")
    storage._groups.redis = late
    with trio.fail_after(30):
        await storage.delete_topic(topic)
        await late.answered.wait()
    storage._groups.redis = late.redis

    assert {} == await storage.committed("g")
    await storage.create_topic("orders", 1, {})
    assert {} == await storage.committed("g", [tp])
    late.taken_up.set()
