"""Topics on Redis: concurrent deletion and recreation, leftovers, the format of a keyspace, lost records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import redis
import trio

from korvet.protocol.errors import KafkaError, UnknownTopicOrPartition
from korvet.storage.interface import (
    AppendResult,
    EpochEnd,
    OffsetAndMetadata,
    Storage,
    StorageUsageError,
    Topic,
    TopicPartition,
)
from korvet.storage.redis.partitions import DROPPED_AT_ONCE
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.base import eventually
from korvet.testing.records import Record, append, batch, batches_of, numbered, read, records_from, records_of
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
STATE = "{korvet:orders:0}:$state"
DENSE = {"offset.mapping": "dense"}


@pytest.fixture
async def storage(redis_server: RedisServer) -> AsyncIterator[Storage]:
    async with open_redis_storage(redis_server.url) as storage:
        yield storage


# --- Deletion and recreation --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_recreated_topics_get_no_records_of_concurrent_appends_to_old_ones(
    redis_server: RedisServer, client: redis.Redis, layout: str
) -> None:
    """Each append carries the topic id that its broker had when the append began."""
    settings = {"storage.layout": layout}
    stored: dict[str, int] = {}

    async def write(broker: Storage, done: trio.Event) -> None:
        number = 0
        while not done.is_set():
            topic = await broker.topic("orders")
            if topic is None:
                continue
            number += 1
            results = await broker.append({TP: batch([Record(str(topic.topic_id).encode())])})
            if isinstance(results[TP], AppendResult):
                stored[str(topic.topic_id)] = stored.get(str(topic.topic_id), 0) + 1
            else:
                assert isinstance(results[TP], UnknownTopicOrPartition)

    async with open_redis_storage(redis_server.url) as first, open_redis_storage(redis_server.url) as second:
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            for broker in (first, second):
                nursery.start_soon(write, broker, done)
            for _ in range(25):
                topic = await first.create_topic("orders", 1, settings)
                await trio.sleep(0.02)
                found = {record.value for record in records_of(await read(first, TP, 0))}
                assert found <= {str(topic.topic_id).encode()}
                await first.delete_topic(topic)
            done.set()

        assert sum(stored.values()) > 100
        assert not client.exists("korvet:orders:0", STATE)


async def test_deleted_topic_leaves_no_keys(storage: Storage, client: redis.Redis) -> None:
    count = 2 * DROPPED_AT_ONCE + 1
    topic = await storage.create_topic("orders", count, {})
    for number in range(count):
        await append(storage, TopicPartition("orders", number), [Record(b"x" * 100_000)])
    await storage.ack("billing", {TP: OffsetAndMetadata(1)})
    await storage.delete_topic(topic)

    assert set() == {key for key in client.keys("*") if b"orders" in key}

    async def offsets() -> object:
        return client.hkeys("korvet:$group:billing")

    await eventually(offsets, [])


async def test_leftovers_of_an_unfinished_deletion_are_not_adopted(
    storage: Storage, client: redis.Redis
) -> None:
    topic = await storage.create_topic("orders", 1, DENSE)
    await append(storage, TP, numbered(3))
    client.hdel("korvet:$topics", "orders")
    async with new_broker(client) as broker:
        await broker.create_topic("orders", 1, DENSE)
        bounds = await broker.latest(TP)
        result = await append(broker, TP, numbered(1))

        assert 0 == bounds.high_watermark
        assert 0 == result.base_offset
    with pytest.raises(UnknownTopicOrPartition):
        await storage.delete_topic(topic)
    assert 1 == len(await records_from(storage, TP))


async def test_broker_with_an_outdated_catalogue_does_not_recreate_state(
    storage: Storage, client: redis.Redis
) -> None:
    await storage.create_topic("orders", 1, {})
    await append(storage, TP, numbered(1))
    client.hdel("korvet:$topics", "orders")
    client.delete("korvet:orders:0", STATE)
    results = await storage.append({TP: batch(numbered(1))})

    assert isinstance(results[TP], UnknownTopicOrPartition)
    assert not client.exists("korvet:orders:0", STATE)


async def test_partition_of_a_recreated_topic_is_not_taken_over_by_the_old_one(
    storage: Storage, client: redis.Redis
) -> None:
    """The old topic stands for that of a broker that read the catalogue just before the topic was deleted."""
    await storage.create_topic("orders", 1, DENSE)
    async with new_broker(client) as other:
        old = await other.topic("orders")
        assert old is not None
        await storage.delete_topic(old)
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(2))
        await eventually(lambda: other.topic("orders"), await storage.topic("orders"))
        with pytest.raises(UnknownTopicOrPartition):
            await other.delete_topic(old)

        assert 2 == len(await records_from(other, TP))


@asynccontextmanager
async def new_broker(client: redis.Redis) -> AsyncIterator[Storage]:
    path = client.connection_pool.connection_kwargs["path"]
    async with open_redis_storage(f"unix://{path}") as storage:
        yield storage


# --- Other brokers --------------------------------------------------------------------------------------------


async def test_altered_settings_are_announced_to_another_broker(
    storage: Storage, client: redis.Redis
) -> None:
    topic = await storage.create_topic("orders", 1, {})
    async with new_broker(client) as other:
        await append(other, TP, numbered(1))
        client.config_resetstat()
        await storage.alter_topic(topic, settings={"message.timestamp.type": "LogAppendTime"})

        async def append_time_is_known() -> bool:
            return (await append(other, TP, numbered(1))).log_append_time_ms > 0

        await eventually(append_time_is_known, expected=True)


# --- The keyspace -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["2", "17", "next", ""])
async def test_newer_keyspace_is_refused(redis_server: RedisServer, client: redis.Redis, stored: str) -> None:
    client.set("korvet:$format", stored)
    with pytest.raises(StorageUsageError, match="format") as refused:
        async with open_redis_storage(redis_server.url):
            pass

    assert "1" in str(refused.value)
    assert client.get("korvet:$format") == stored.encode()


async def test_keyspace_has_a_format_version_from_the_start(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with open_redis_storage(redis_server.url):
        assert b"1" == client.get("korvet:$format")
    async with open_redis_storage(redis_server.url):
        assert [b"korvet:$format"] == client.keys("*")


async def test_namespaces_are_independent(redis_server: RedisServer, client: redis.Redis) -> None:
    async with (
        open_redis_storage(redis_server.url) as one,
        open_redis_storage(redis_server.url, namespace="other") as other,
    ):
        await one.create_topic("orders", 1, {})
        await append(one, TP, numbered(1))

        assert {} == await other.topics()
        await other.create_topic("orders", 1, {})
        assert [] == await records_from(other, TP)
        await append(other, TP, numbered(2))
        assert 1 == len(await records_from(one, TP))
    assert all(key.startswith((b"korvet:", b"other:", b"{korvet:", b"{other:")) for key in client.keys("*"))


async def test_description_contains_server_and_durability(redis_server: RedisServer) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        name = "Valkey" if redis_server.kind.id.startswith("valkey") else "Redis"

        assert storage.description.startswith(f"{name} ")
        assert str(redis_server.socket) in storage.description
        assert "disk" in storage.durability


@pytest.mark.parametrize("url", ["redis://localhost:1/x/y", "unix://", "redis://localhost?db=many"])
async def test_invalid_url_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(StorageUsageError) as refused:
        async with open_redis_storage(url):
            pass

    assert "\n" not in str(refused.value)


async def test_wrong_password_is_refused_in_one_line(new_server: object) -> None:
    server = new_server(tcp=True, options={"requirepass": "right"})  # type: ignore[operator]
    url = server.tcp_url.replace("redis://", "redis://:wrong@")
    with pytest.raises(StorageUsageError) as refused:
        async with open_redis_storage(url):
            pass

    assert "wrong" not in str(refused.value).replace("WRONGPASS", "")


# --- Lost records -----------------------------------------------------------------------------------------------


async def restore_keys(client: redis.Redis, saved: dict[bytes, bytes]) -> None:
    """Restore saved keys, as a server that restarts with an older file does."""
    client.delete(*[key for key in client.keys("*") if b"orders" in key and b"$topics" not in key])
    for key, dump in saved.items():
        client.restore(key, 0, dump, replace=True)


def save(client: redis.Redis) -> dict[bytes, bytes]:
    keys = [key for key in client.keys("*") if b"orders" in key]
    return {key: client.dump(key) for key in keys}


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_lost_records_start_a_new_leader_epoch(
    storage: Storage, client: redis.Redis, layout: str
) -> None:
    await storage.create_topic("orders", 1, {**DENSE, "storage.layout": layout})
    await append(storage, TP, numbered(5))
    saved = save(client)
    await append(storage, TP, numbered(5, first=5))
    await restore_keys(client, saved)
    bounds = await storage.latest(TP)
    await append(storage, TP, numbered(3, first=100))
    found = await read(storage, TP, 0)
    epochs = [(each.base_offset, each.partition_leader_epoch) for each in batches_of(found)]

    assert (10, 1) == (bounds.high_watermark, bounds.leader_epoch)
    assert [(0, 0), (10, 1)] == epochs
    assert [b"100", b"101", b"102"] == [record.value for record in await records_from(storage, TP, 5)]
    assert EpochEnd(0, 5) == await storage.epoch_end(TP, 0)
    assert EpochEnd(1, 13) == await storage.epoch_end(TP, 1)
    assert EpochEnd(-1, -1) == await storage.epoch_end(TP, 2)
    assert 0 == (await storage.earliest(TP)).leader_epoch


async def test_append_detects_lost_records(storage: Storage, client: redis.Redis) -> None:
    await storage.create_topic("orders", 1, DENSE)
    await append(storage, TP, numbered(5))
    saved = save(client)
    await append(storage, TP, numbered(5, first=5))
    await restore_keys(client, saved)
    await append(storage, TP, numbered(1, first=100))
    found = await read(storage, TP, 0)

    assert 1 == found.offsets.leader_epoch
    assert [(0, 0), (10, 1)] == [
        (each.base_offset, each.partition_leader_epoch) for each in batches_of(found)
    ]


async def test_two_brokers_that_detect_the_same_loss_start_one_epoch(
    storage: Storage, client: redis.Redis
) -> None:
    await storage.create_topic("orders", 1, DENSE)
    async with new_broker(client) as other:
        await append(storage, TP, numbered(5))
        saved = save(client)
        await append(storage, TP, numbered(5))
        await other.latest(TP)
        await restore_keys(client, saved)
        epochs = [(await each.latest(TP)).leader_epoch for each in (storage, other, storage, other)]

    assert [1, 1, 1, 1] == epochs


async def test_topic_lost_with_the_records_is_unknown(storage: Storage, client: redis.Redis) -> None:
    topic: Topic = await storage.create_topic("orders", 1, {})
    await append(storage, TP, numbered(5))
    client.flushall()
    results = await storage.append({TP: batch(numbered(1))})

    assert isinstance(results[TP], KafkaError)
    assert await storage.topic_by_id(topic.topic_id) is None


# --- New partitions -----------------------------------------------------------------------------------------


async def round_trips(storage: Storage, work: Awaitable[object]) -> float:
    """Return how many commands or pipelines the work sends."""

    def sent() -> float:
        return cast(float, storage.measurements()["korvet_redis_commands_total"][()])

    before = sent()
    await work
    return sent() - before


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_first_requests_about_a_new_partition_take_one_round_trip(
    storage: Storage, layout: str
) -> None:
    """Otherwise records of later requests are below the end that ListOffsets returns."""
    storage.start_counting()
    topic = await storage.create_topic("orders", 2, {"storage.layout": layout})
    await storage.alter_topic(topic, partitions=4)

    for number in (0, 3):
        tp = TopicPartition("orders", number)
        assert 1 == await round_trips(storage, storage.latest(tp))
    for number in (1, 2):
        tp = TopicPartition("orders", number)
        assert 1 == await round_trips(storage, append(storage, tp, numbered(1)))


async def test_topic_is_created_while_redis_cannot_create_its_partitions(
    storage: Storage, client: redis.Redis
) -> None:
    client.acl_setuser(
        "default", nopass=True, enabled=True, keys=["*"], categories=["+@all"], commands=["-xtrim"]
    )
    try:
        await storage.create_topic("orders", 1, {})
    finally:
        client.acl_setuser("default", nopass=True, enabled=True, keys=["*"], categories=["+@all"])

    assert not client.exists(STATE)
    await append(storage, TP, numbered(1))
    assert 1 == len(await records_from(storage, TP, 0))


async def test_topic_that_is_deleted_while_its_partitions_are_created_leaves_no_keys(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with open_redis_storage(redis_server.url) as first, open_redis_storage(redis_server.url) as second:

        async def delete_at_once() -> None:
            while (topic := await second.topic("orders")) is None:
                pass
            await second.delete_topic(topic)

        for _ in range(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete_at_once)
                await first.create_topic("orders", 200, {})

            assert [] == [key for key in client.keys("*") if b"orders" in key]
