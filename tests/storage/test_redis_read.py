"""Reading slices of a stream: the Redis commands sent for each result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import redis

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import ReadRequest, Storage, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import Record, append, batches_of, read, records_from
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
MIB = 1 << 20
# MULTI, the state and EXEC beside the entries, and their IDs and lengths.
OVERHEAD_BYTES = 16 * 1024


@pytest.fixture(params=["record", "batch"])
def layout(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
async def storage(redis_server: RedisServer, layout: str) -> AsyncIterator[Storage]:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout, "offset.mapping": "dense"})
        yield storage


async def write(storage: Storage, sizes: Sequence[int]) -> None:
    for size in sizes:
        await append(storage, TP, [Record(bytes(size))])


def sent_bytes(client: redis.Redis) -> int:
    total: int = client.info("stats")["total_net_output_bytes"]
    return total


@pytest.mark.parametrize("size", [10_000, 100_000, 900_000])
async def test_redis_sends_little_more_than_is_returned(
    storage: Storage, client: redis.Redis, size: int
) -> None:
    await write(storage, [size] * (4 * MIB // size))
    await read(storage, TP, 0, max_bytes=MIB)  # now it knows how large they are

    before = sent_bytes(client)
    answered = await read(storage, TP, 1, max_bytes=MIB)
    assert MIB - size - OVERHEAD_BYTES < answered.size <= MIB
    assert sent_bytes(client) - before < answered.size + OVERHEAD_BYTES


async def test_read_fills_max_bytes_when_entries_become_smaller(storage: Storage, layout: str) -> None:
    await write(storage, [500_000, 500_000, *[100] * 500, 500_000])
    answered = await read(storage, TP, 0, max_bytes=1_020_000)

    records = sum(each.record_count for each in batches_of(answered))
    fitting = (1_020_000 - 1_000_000) // (200 if layout == "batch" else 120)
    assert records > 2 + fitting / 2


async def test_large_entries_among_small_ones_are_read(storage: Storage) -> None:
    sizes = [10, 900_000, *[10] * 300, 900_000, 900_000, 10]
    await write(storage, sizes)
    found = await records_from(storage, TP, 0, max_bytes=MIB)
    assert sizes == [len(record.value or b"") for record in found]


async def test_read_of_a_caught_up_consumer_transfers_at_most_max_bytes(
    storage: Storage, client: redis.Redis
) -> None:
    await write(storage, [900_000])
    await read(storage, TP, 1)  # nothing yet
    await write(storage, [900_000] * 8)

    before = sent_bytes(client)
    answered = await read(storage, TP, 1, max_bytes=MIB)
    assert 1 == len(batches_of(answered))
    assert sent_bytes(client) - before < answered.size + OVERHEAD_BYTES


async def test_thousands_of_small_batches_are_returned_in_few_buffers(storage: Storage) -> None:
    await write(storage, [100] * 3000)
    answered = await read(storage, TP, 0, max_bytes=MIB)

    assert 3000 == sum(each.record_count for each in batches_of(answered))
    assert answered.size == len(answered.batches.joined())
    assert len(answered.batches.buffers) < 30


async def test_partitions_of_an_unresponsive_server_get_storage_errors(
    redis_server: RedisServer, layout: str
) -> None:
    partitions = 300  # more than one write asks for
    tps = [TopicPartition("orders", number) for number in range(partitions)]
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", partitions, {"storage.layout": layout})
        await storage.latest(tps[0])
        storage._reader.redis.patience_s = 0.2
        redis_server.pause()
        try:
            requests = dict.fromkeys(tps, ReadRequest(0, MIB))
            read = await storage.read(requests, max_bytes=MIB)
            sizes = await storage.sizes(tps)
        finally:
            redis_server.resume()

    assert tps == list(read)
    assert all(isinstance(result, KafkaStorageError) for result in read.values())
    assert list(sizes) == tps
    assert all(isinstance(size, KafkaStorageError) for size in sizes.values())


async def test_sizes_of_unused_partitions_are_read_without_creating_states(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    """A client that asks for all log directories asks for every partition of the broker."""
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("unused", 200, {})
        tps = [TopicPartition("unused", number) for number in range(200)]
        keys = client.dbsize()
        client.config_resetstat()
        sizes = await storage.sizes(tps)
        commands = client.info("commandstats")

    assert dict.fromkeys(tps, 0) == sizes
    assert keys == client.dbsize()
    assert "cmdstat_evalsha" not in commands
