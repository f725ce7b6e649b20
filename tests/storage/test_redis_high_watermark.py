"""The high watermark with `min.insync.replicas` above 1, and acks=all that waits for replicas and the disk."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from korvet.protocol.errors import NotEnoughReplicas
from korvet.storage.interface import Storage, StorageUsageError, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import append, append_batch, batch, numbered, read, records_from
from tests.sentinels import scripted_sentinel, sentinel_url
from tests.servers import REDIS_FLOOR, VALKEY, RedisServer, ServerPair, StartServer, kinds, on
from tests.storage.test_redis_failover import let_catch_up, promote

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
ON_OLDEST_AND_NEWEST = on(*(kind for kind in (VALKEY, REDIS_FLOOR) if kind in kinds()))
EACH_LAYOUT = pytest.mark.parametrize("layout", ["record", "batch"])


async def create(storage: Storage, layout: str = "record") -> None:
    settings = {"min.insync.replicas": "2", "offset.mapping": "dense", "storage.layout": layout}
    await storage.create_topic("orders", 1, settings)


async def high_watermarks(storage: Storage, offset: int) -> tuple[int, int]:
    """Return the high watermark of a read at the offset, and that of ListOffsets."""
    return (await read(storage, TP, offset)).offsets.high_watermark, (await storage.latest(TP)).high_watermark


async def values_when_woken(storage: Storage, offset: int, count: int) -> list[bytes | None]:
    """Read from the offset as a long poll does, until there are `count` records."""
    with storage.watch([TP]) as watch:
        while len(records := await records_from(storage, TP, offset)) < count:
            await watch.wait()
    return [record.value for record in records]


@ON_OLDEST_AND_NEWEST
@EACH_LAYOUT
async def test_unconfirmed_records_are_invisible_until_replicas_confirm_them(
    replica_pair: ServerPair, layout: str
) -> None:
    primary, replica = replica_pair
    async with AsyncExitStack() as stack:
        storage, other = [await stack.enter_async_context(open_redis_storage(primary.url)) for _ in range(2)]
        await create(storage, layout)
        await append(storage, TP, numbered(2))
        confirmed = [await high_watermarks(each, 0) for each in (storage, other)]

        replica.pause()
        try:
            await append_batch(storage, TP, batch(numbered(1, first=2)), acks=1)
            with primary.client() as client:
                client.xadd("korvet:orders:0", {"value": "3"}, id="4-0")
            hidden = [await high_watermarks(each, 2) for each in (storage, other)]
            records = [len(await records_from(each, TP, 0)) for each in (storage, other)]
            time = await storage.seek_ts(TP, numbered(1, first=2)[0].timestamp + 1)
            async with open_redis_storage(primary.url) as restarted:
                hidden.append(await high_watermarks(restarted, 2))
                records.append(len(await records_from(restarted, TP, 0)))
        finally:
            replica.resume()
        with trio.fail_after(20):
            woken = [await values_when_woken(each, 2, 2) for each in (storage, other)]
        visible = [await high_watermarks(each, 4) for each in (storage, other)]

    assert [(2, 2)] * 2 == confirmed
    assert [(2, 2)] * 3 == hidden
    assert [2, 2, 2] == records
    assert time is None
    assert [[b"2", b"3"]] * 2 == woken
    assert [(4, 4)] * 2 == visible


@on(VALKEY)
async def test_demoted_server_shows_no_unconfirmed_records(replica_pair: ServerPair) -> None:
    primary = replica_pair[0]
    async with open_redis_storage(primary.url) as storage:
        await create(storage)
        await append_batch(storage, TP, batch(numbered(3)), acks=1)
        with primary.client() as client:
            client.replicaof("127.0.0.1", 1)
        assert (0, 0) == await high_watermarks(storage, 0)
        assert [] == await records_from(storage, TP, 0)


@ON_OLDEST_AND_NEWEST
@EACH_LAYOUT
async def test_high_watermark_is_the_same_for_a_broker_that_was_away_when_it_rose(
    replica_pair: ServerPair, layout: str
) -> None:
    primary, replica = replica_pair
    async with open_redis_storage(primary.url) as storage:
        await create(storage, layout)
        await append(storage, TP, numbered(2))
        async with open_redis_storage(primary.url) as other:
            before = await high_watermarks(other, 0)
            await append_batch(storage, TP, batch(numbered(3, first=2)))
            replica.kill()
            await append_batch(storage, TP, batch(numbered(1, first=5)), acks=1)
            async with open_redis_storage(primary.url) as new:
                found = [await high_watermarks(each, 5) for each in (other, new, storage)]
                values = [len(await records_from(each, TP, 0)) for each in (other, new, storage)]

    assert (2, 2) == before
    assert [(5, 5)] * 3 == found
    assert [5, 5, 5] == values


@ON_OLDEST_AND_NEWEST
async def test_confirmed_records_are_read_after_a_failover_without_replicas(replica_pair: ServerPair) -> None:
    """ListOffsets does not return an end before that of the former primary, which clients may have (KIP-207)."""
    named = replica_pair[0].port
    async with (
        scripted_sentinel(lambda: named) as port,
        open_redis_storage(sentinel_url(port)) as storage,
    ):
        await create(storage)
        await append(storage, TP, numbered(3))
        confirmed = await high_watermarks(storage, 0)
        await append_batch(storage, TP, batch(numbered(1, first=3)), acks=1)
        let_catch_up(replica_pair)
        named = promote(replica_pair).port
        await storage.monitor.check()
        async with open_redis_storage(sentinel_url(port)) as new:
            each = [(await storage.latest(TP)), (await new.latest(TP))]
            values = [len(await records_from(one, TP, 0)) for one in (storage, new)]

    assert (3, 3) == confirmed
    for bounds in each:
        assert bounds.high_watermark in {3, 4}
        assert bounds.has_caught_up == (bounds.high_watermark == 4)
    assert 3 <= min(values)


async def test_records_stay_visible_when_a_topic_requires_replicas_later(replica_pair: ServerPair) -> None:
    primary, replica = replica_pair
    async with open_redis_storage(primary.url) as storage:
        settings = {"offset.mapping": "dense"}
        topic = await storage.create_topic("orders", 1, settings)
        await append(storage, TP, numbered(3))
        replica.kill()
        await storage.alter_topic(topic, settings={**settings, "min.insync.replicas": "2"})
        visible = [await high_watermarks(storage, 0)]
        await append_batch(storage, TP, batch(numbered(1, first=3)), acks=1)
        visible.append(await high_watermarks(storage, 0))
        assert 3 == len(await records_from(storage, TP, 0))

    assert [(3, 3), (3, 3)] == visible


async def test_restarted_broker_reads_confirmed_records(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        await create(storage)
        await append_batch(storage, TP, batch(numbered(3)), acks=1)
    async with open_redis_storage(replica_pair[0].url) as storage:
        with trio.fail_after(20):
            assert [b"0", b"1", b"2"] == await values_when_woken(storage, 0, 3)


async def test_waiting_reader_of_another_broker_is_woken_by_a_confirmation(replica_pair: ServerPair) -> None:
    async with AsyncExitStack() as stack:
        storage, other = [
            await stack.enter_async_context(open_redis_storage(replica_pair[0].url)) for _ in range(2)
        ]
        await create(storage)
        woken: list[list[bytes | None]] = []

        async def poll(each: Storage) -> None:
            woken.append(await values_when_woken(each, 0, 3))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll, storage)
                nursery.start_soon(poll, other)
                for number, acks in enumerate((1, -1, 1)):
                    await append_batch(storage, TP, batch(numbered(1, first=number)), acks=acks)

    assert [[b"0", b"1", b"2"]] * 2 == woken


@ON_OLDEST_AND_NEWEST
async def test_acks_all_is_refused_before_the_append_if_too_few_replicas_are_connected(
    replica_pair: ServerPair,
) -> None:
    primary, replica = replica_pair
    async with open_redis_storage(primary.url) as storage:
        await create(storage)
        await append(storage, TP, numbered(1))
        replica.kill()
        results = []

        async def append_with(acks: int) -> None:
            results.append((await storage.append({TP: batch(numbered(1))}, acks=acks))[TP])

        with trio.fail_after(10):
            # Batches that arrive together share a call.
            async with trio.open_nursery() as nursery:
                for acks in (1, -1, 1, -1):
                    nursery.start_soon(append_with, acks)

    with primary.client() as client:
        assert 3 == client.xlen("korvet:orders:0")
    refused = [result for result in results if isinstance(result, NotEnoughReplicas)]
    assert ["min.insync.replicas=2, but Redis has 0 replicas"] * 2 == [str(error) for error in refused]


async def test_high_watermark_does_not_wait_with_one_copy(redis_server: RedisServer) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {})
        await append(storage, TP, numbered(1))
        await records_from(storage, TP, 0)

    with redis_server.client() as client:
        assert not client.exists("korvet:$replicas")


@on(VALKEY)
async def test_acks_all_waits_for_the_disk(new_server: StartServer) -> None:
    server = new_server(options={"appendonly": "yes", "appendfsync": "everysec"})
    async with open_redis_storage(server.url, fsync=True) as storage:
        await storage.create_topic("orders", 1, {})
        await append(storage, TP, numbered(1))
    with server.client() as client:
        assert 1 == client.info("commandstats")["cmdstat_waitaof"]["calls"] - 1  # one at the start
    async with open_redis_storage(server.url, fsync=True) as storage:
        with server.client() as client:
            client.config_set("appendonly", "no")
        result = (await storage.append({TP: batch(numbered(1))}))[TP]

    assert "appendonly is disabled" in str(result)


@ON_OLDEST_AND_NEWEST
async def test_server_that_cannot_wait_for_the_disk_is_refused(redis_server: RedisServer) -> None:
    with pytest.raises(StorageUsageError, match=r"acks.all.fsync=true requires WAITAOF \(Redis 7.2 or newer"):
        async with open_redis_storage(redis_server.url, fsync=True):
            pass
