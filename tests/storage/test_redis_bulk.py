"""The connection for what is large: opened when there is need of it, and nothing depends on it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import redis
import trio
import trio.testing

from korvet.storage.interface import Storage, TopicPartition
from korvet.storage.redis.client.bulk import LARGE_BYTES
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import Record, append, read, records_from
from tests.servers import RedisServer, StartServer

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
LIMIT_S = 10.0


@pytest.fixture(params=["record", "batch"])
async def storage(redis_server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Storage]:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": request.param, "offset.mapping": "dense"})
        yield storage


def bulk_connections(client: redis.Redis) -> list[dict[str, str]]:
    return [each for each in client.client_list() if each["name"].endswith(":bulk")]


async def until_used(client: redis.Redis, last_command: str, work: Callable[[], Awaitable[object]]) -> int:
    """Do it until it was done over such a connection: the first time has it opened. Its id."""
    with trio.fail_after(LIMIT_S):
        while True:
            await work()
            for each in bulk_connections(client):
                if each["cmd"] == last_command:
                    return int(each["id"])


async def append_large(storage: Storage) -> None:
    await append(storage, TP, [Record(bytes(LARGE_BYTES))])


async def test_bulk_connection_is_opened_by_the_first_large_batch(
    storage: Storage, client: redis.Redis
) -> None:
    await append(storage, TP, [Record(b"small")])
    await read(storage, TP, 0)
    assert not bulk_connections(client)

    await until_used(client, "evalsha", partial(append_large, storage))


async def test_large_reads_use_the_bulk_connection(
    redis_server: RedisServer, storage: Storage, client: redis.Redis
) -> None:
    for _ in range(4):
        await append_large(storage)
    async with open_redis_storage(redis_server.url) as reader:
        await until_used(client, "exec", partial(read, reader, TP, 0, max_bytes=2 * LARGE_BYTES))


async def test_small_and_large_batches_of_a_partition_keep_their_order(
    storage: Storage, client: redis.Redis
) -> None:
    await until_used(client, "evalsha", partial(append_large, storage))
    begin = (await storage.latest(TP)).high_watermark
    sizes = [10 if number % 3 else 2 * LARGE_BYTES for number in range(60)]

    async with trio.open_nursery() as nursery:
        for size in sizes:
            nursery.start_soon(append, storage, TP, [Record(bytes(size))])
            await trio.testing.wait_all_tasks_blocked()

    found = await records_from(storage, TP, begin)
    assert sizes == [len(record.value or b"") for record in found]


async def test_batches_in_flight_when_the_bulk_connection_breaks_are_stored_once(
    storage: Storage, client: redis.Redis
) -> None:
    opened = await until_used(client, "evalsha", partial(append_large, storage))
    begin = (await storage.latest(TP)).high_watermark

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(append, storage, TP, [Record(b"%d" % number * LARGE_BYTES)])
            if number == 10:
                await trio.lowlevel.checkpoint()
                client.client_kill_filter(_id=str(opened))

    values = [record.value or b"" for record in await records_from(storage, TP, begin)]
    assert sorted(values) == sorted(b"%d" % number * LARGE_BYTES for number in range(20))


async def test_main_connection_is_used_when_no_bulk_connection_can_be_opened(
    new_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server()
    with server.client() as client:
        async with open_redis_storage(server.url) as storage:
            await storage.create_topic("orders", 1, {})
            client.config_set("requirepass", "changed")
            with caplog.at_level(logging.WARNING):
                await append_large(storage)
                with trio.fail_after(LIMIT_S):
                    while "no connection for large records" not in caplog.text:  # noqa: ASYNC110
                        await trio.sleep(0.005)
            await append_large(storage)
            assert 2 == len(await records_from(storage, TP))
            client.config_set("requirepass", "")
