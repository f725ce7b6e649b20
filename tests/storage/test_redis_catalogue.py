"""The catalogue of topics in Redis: what a broker goes by while Redis is away, or is asked by several at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
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
        while storage._catalogue.redis.connection.is_connected:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_what_is_to_be_read_anew_stays_known_while_the_store_is_away(
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


async def test_a_list_that_was_never_complete_is_not_told(
    storage: RedisStreamsStorage, durable_server: RedisServer
) -> None:
    await storage.create_topic("orders", 1, {})
    storage._changed(None)
    durable_server.kill()
    await is_disconnected(storage)

    with pytest.raises(KafkaStorageError):
        await storage.topics()


async def test_a_topic_that_is_gone_when_the_store_is_back_is_unknown_from_then_on(
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
    assert topic.name == "orders"


async def test_a_full_server_gets_room_by_deleting_a_topic(
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
        fields = client.hkeys("korvet:$group:g")

    assert ([], [], {}) == (left, fields, dict(await storage.topics()))


class Late:
    """A connection whose answers to one command are taken up late, as those of a task whose turn comes last."""

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


async def test_a_topic_created_while_all_are_read_is_among_them(storage: RedisStreamsStorage) -> None:
    late: Any = Late(storage, b"HGETALL")
    storage._catalogue.redis = late
    storage._watcher._changed = lambda _: None  # word of it may come later, too
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.topics)
        await late.answered.wait()
        await storage.create_topic("orders", 1, {})
        late.taken_up.set()

    assert ["orders"] == list(await storage.topics())


async def test_a_topic_created_while_it_is_looked_for_is_found(storage: RedisStreamsStorage) -> None:
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
