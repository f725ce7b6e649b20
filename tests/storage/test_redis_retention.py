"""Deletion from Redis: expired pieces of a log, and the state of expired producers and brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from korvet.storage.interface import Storage, StorageDefaults, Topic, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.base import eventually
from korvet.testing.records import Producer, Record, append, numbered, records_from
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
KEY = "korvet:orders:0"
STATE = f"{{{KEY}}}:$state"
HOUR_MS = "3600000"
YEAR_2100 = 4_102_444_800_000


@pytest.fixture
async def storage(redis_server: RedisServer) -> AsyncIterator[Storage]:
    defaults = StorageDefaults(retention_check_interval_ms=0, producer_id_expiration_ms=1)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        yield storage


@pytest.fixture(params=["record", "batch"])
async def topic(storage: Storage, request: pytest.FixtureRequest) -> Topic:
    return await storage.create_topic("orders", 1, {"storage.layout": request.param, "retention.ms": "-1"})


async def test_old_records_are_removed_when_a_young_one_is_appended(storage: Storage, topic: Topic) -> None:
    """Even a few: in one piece of the log, they would remain as long as young records are added to it."""
    await append(storage, TP, numbered(3))
    await storage.alter_topic(topic, settings={**topic.settings, "retention.ms": HOUR_MS})
    young = await append(storage, TP, [Record(b"young", timestamp=YEAR_2100)])

    assert [b"young"] == [record.value for record in await records_from(storage, TP)]
    assert (await storage.latest(TP)).log_start_offset <= young.base_offset


async def test_lowered_retention_applies_to_existing_records(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    for _ in range(20):
        await append(storage, TP, [Record(b"x" * 10_000)] * 50)
    before = client.xlen(KEY)
    await storage.alter_topic(topic, settings={**topic.settings, "retention.bytes": "100000"})
    await append(storage, TP, numbered(1))

    async def kept_bytes() -> bool:
        sizes = await storage.sizes([TP])
        size = sizes[TP]
        return isinstance(size, int) and size < 700_000

    await eventually(kept_bytes, expected=True)
    assert client.xlen(KEY) < before / 5
    assert client.xlen(f"{{{KEY}}}:$index") < 10


async def test_maintenance_creates_no_keys_for_an_unused_partition(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    """Otherwise the workers would fill Redis with the states of unused partitions of an earlier version."""
    client.delete("{korvet:orders:0}:$state")  # earlier versions created it with the first request
    policy = {"retention.ms": HOUR_MS, "cleanup.policy": "compact,delete"}
    await storage.alter_topic(topic, settings={**topic.settings, **policy})

    assert await storage.enforce_retention(TP) is None
    assert await storage.compact(TP) is None
    assert [] == [key for key in client.scan_iter() if b"orders" in key]


async def test_trimming_keeps_index_and_stream_consistent(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    await storage.alter_topic(topic, settings={**topic.settings, "retention.bytes": "300000"})
    for number in range(60):
        await append(storage, TP, [Record(b"%06d" % number * 1000)] * 5)
        first = client.xrange(KEY, count=1)[0][0]
        pieces = client.xrange(f"{{{KEY}}}:$index")
        state = client.hgetall(STATE)

        assert int(state[b"length"]) == client.xlen(KEY)
        assert all(id_of(piece_id) >= id_of(first) for piece_id, _ in pieces)
        assert int(state[b"bytes"]) - int(state[b"trimmed"]) < 500_000


def id_of(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


async def test_expired_producers_are_removed_as_new_ones_are_added(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    for producer_id in range(400):
        await append(storage, TP, numbered(1), producer=Producer(producer_id))

    assert client.hlen(f"{{{KEY}}}:$producers") < 200


async def test_outdated_brokers_are_removed(
    storage: Storage, topic: Topic, redis_server: RedisServer, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    await append(storage, TP, numbered(1))
    for number in range(40):
        client.hset(STATE, f"w:{number:016}", "7 1600000000000 ok|1-0|1600000000000|0-0|0|1-1|0")
    async with open_redis_storage(redis_server.url) as other:
        await append(other, TP, numbered(1))
    writers = [field for field in client.hkeys(STATE) if field.startswith(b"w:")]

    assert 2 == len(writers)
