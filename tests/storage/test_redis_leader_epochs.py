"""The leader epoch that all brokers on one Redis return: it rises with failovers and restarts, and never decreases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from korvet.storage.interface import EpochEnd, Storage, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.base import eventually
from korvet.testing.records import append, batches_of, numbered, read
from tests.servers import RedisServer, ServerPair
from tests.storage.test_redis_failover import let_catch_up, promote

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
DENSE = {"offset.mapping": "dense"}


def newest_of(storage: Storage) -> Callable[[], Awaitable[int]]:
    async def newest() -> int:
        return storage.newest_leader_epoch

    return newest


async def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


async def test_broker_that_has_not_served_a_partition_returns_its_leader_epoch(
    durable_server: RedisServer,
) -> None:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(open_redis_storage(durable_server.url)) for _ in range(2)
        ]
        await first.create_topic("orders", 2, DENSE)
        await append(first, TP, numbered(3))
        before = [first.newest_leader_epoch, second.newest_leader_epoch]
        await restart(durable_server)
        bounds = await first.latest(TP)
        await eventually(newest_of(second), 1)
        async with open_redis_storage(durable_server.url) as third:
            after = [each.newest_leader_epoch for each in (first, second, third)]

    assert [0, 0] == before
    assert 1 == bounds.leader_epoch
    assert [1, 1, 1] == after


async def test_restart_raises_the_leader_epoch_once_for_all_partitions(durable_server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(open_redis_storage(durable_server.url)) for _ in range(2)
        ]
        await first.create_topic("orders", 2, DENSE)
        for number in range(1, 4):
            await append(first, TP, numbered(1))
            if number == 1:
                await append(first, OTHER, numbered(1))
            await restart(durable_server)
            assert number == (await first.latest(TP)).leader_epoch
            assert number == first.newest_leader_epoch
        # This partition has missed two restarts.
        assert 3 == (await second.latest(OTHER)).leader_epoch
        assert 3 == second.newest_leader_epoch


async def test_topic_that_is_created_again_begins_at_the_newest_leader_epoch(
    durable_server: RedisServer,
) -> None:
    async with open_redis_storage(durable_server.url) as storage:
        topic = await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(3))
        await restart(durable_server)
        before = (await storage.latest(TP)).leader_epoch
        await storage.delete_topic(topic)
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(1))
        bounds = await storage.latest(TP)
        (stored,) = batches_of(await read(storage, TP, 0))

    assert [1, 1, 1] == [before, bounds.leader_epoch, stored.partition_leader_epoch]


async def test_newest_leader_epoch_ends_at_the_end_of_the_log(durable_server: RedisServer) -> None:
    """A client may ask for the end of an epoch that another partition has begun."""
    async with open_redis_storage(durable_server.url) as storage:
        await storage.create_topic("orders", 1, DENSE)
        await append(storage, TP, numbered(3))
        storage.leader_epochs.note(4)
        ends = [await storage.epoch_end(TP, epoch) for epoch in (0, 3, 4, 5)]

    assert [*[EpochEnd(0, 3)] * 3, EpochEnd(-1, -1)] == ends


async def test_leader_epoch_of_an_earlier_version_raises_the_newest_one(redis_server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(open_redis_storage(redis_server.url)) for _ in range(2)
        ]
        await first.create_topic("orders", 1, DENSE)
        with redis_server.client() as client:
            client.hset("{korvet:orders:0}:$state", "epochs", "7:1-0")
        bounds = await first.latest(TP)
        await eventually(newest_of(second), 7)

    assert 7 == bounds.leader_epoch == first.newest_leader_epoch


async def epoch_after(storage: Storage) -> int:
    await append(storage, TP, numbered(1))
    return (await storage.latest(TP)).leader_epoch


async def test_leader_epoch_rises_above_one_that_a_failover_has_lost(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        await storage.create_topic("orders", 1, DENSE)
        await epoch_after(storage)
        let_catch_up(replica_pair)
        storage.leader_epochs.note(5)
        known = storage.newest_leader_epoch
    promoted = promote(replica_pair)
    async with open_redis_storage(promoted.url) as storage:
        storage.leader_epochs.note(known)  # as a broker that runs through the failover has it
        assert 6 == await epoch_after(storage) == storage.newest_leader_epoch
