"""Reads and commits that no task waits for: the task that reads the connection to Redis notifies the caller."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import trio

from korvet.protocol.errors import IllegalGeneration, KafkaStorageError
from korvet.storage.interface import (
    IsolationLevel,
    OffsetAndMetadata,
    PendingAck,
    PendingRead,
    ReadRequest,
    ReadResult,
    Storage,
    StorageDefaults,
    TopicPartition,
)
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import append, numbered
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

TPS = [TopicPartition("orders", number) for number in range(3)]
TP = TPS[0]
EVERYTHING = 1 << 20
# Longer than a loaded machine pauses.
PATIENCE_S = 15.0

each_layout = pytest.mark.parametrize("layout", ["record", "batch"])


@asynccontextmanager
async def broker_on(server: RedisServer, layout: str = "batch") -> AsyncIterator[Storage]:
    """Yield a broker's storage on the server, with the topic "orders", which is created if it does not exist."""
    async with open_redis_storage(
        server.url, defaults=StorageDefaults(retention_check_interval_ms=0)
    ) as storage:
        if await storage.topic("orders") is None:
            await storage.create_topic("orders", 3, {"storage.layout": layout, "retention.ms": "-1"})
        yield storage


def begun(storage: Storage, *tps: TopicPartition, max_bytes: int = EVERYTHING, **options: Any) -> PendingRead:
    """Begin to read partitions from their beginning."""
    reading = storage.try_read({tp: ReadRequest(0, EVERYTHING) for tp in tps}, max_bytes=max_bytes, **options)
    assert isinstance(reading, PendingRead)
    return reading


async def answered(pending: PendingRead | PendingAck) -> Any:
    """Return the results without waiting for anything but the notification, or None if they have to be waited for."""
    is_done = notified(pending)
    with trio.fail_after(PATIENCE_S):
        await is_done.wait()
    return pending.known_results()


def notified(pending: PendingRead | PendingAck) -> trio.Event:
    """Return the event that is set when the call is answered."""
    is_done = trio.Event()
    assert pending.notify(is_done.set)
    return is_done


async def results_of(pending: PendingRead | PendingAck) -> Any:
    results = await answered(pending)
    return await pending.wait() if results is None else results


def seen(results: Any) -> dict[TopicPartition, object]:
    return {
        tp: (result.batches.joined(), result.offsets, result.is_cut, result.aborted)
        if isinstance(result, ReadResult)
        else repr(result)
        for tp, result in results.items()
    }


@each_layout
@pytest.mark.parametrize("isolation_level", IsolationLevel)
@pytest.mark.parametrize("max_bytes", [EVERYTHING, 3000, 1])
async def test_notified_read_returns_what_a_read_does(
    redis_server: RedisServer, layout: str, isolation_level: IsolationLevel, max_bytes: int
) -> None:
    async with broker_on(redis_server, layout) as storage:
        await append(storage, TPS[1], numbered(30))
        for first in range(0, 3000, 1000):
            await append(storage, TPS[2], numbered(1000, first=first))
    options = {"max_bytes": max_bytes, "isolation_level": isolation_level}
    requests = {tp: ReadRequest(0, EVERYTHING) for tp in TPS}
    async with broker_on(redis_server) as one, broker_on(redis_server) as other:
        for _ in range(2):  # the first read of a broker does not know the size of entries
            expected = seen(await one.read(requests, **options))
            assert expected == seen(await results_of(begun(other, *TPS, **options)))
        assert expected == seen(await begun(other, *TPS, **options).wait())


async def test_read_of_few_records_needs_no_task(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(3))
        await storage.read({TP: ReadRequest(0, EVERYTHING)}, max_bytes=EVERYTHING)

        results = await answered(begun(storage, TP))

        assert isinstance(results[TP], ReadResult)


async def test_no_growth_between_a_read_and_a_later_watch_is_missed(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage, broker_on(redis_server) as other:
        for broker in (storage, other):
            reading = begun(storage, TP)
            await results_of(reading)
            await append(broker, TP, numbered(1))
            with storage.watch([TP]) as watch:
                reading.report_ends()
                with trio.fail_after(PATIENCE_S):
                    assert {TP} == set(await watch.wait())


async def test_read_whose_state_is_gone_is_waited_for(redis_server: RedisServer, client: redis.Redis) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(2))
        client.delete(storage._keyspace.partition(TP).state)  # type: ignore[attr-defined]
        reading = begun(storage, TP)

        results = await results_of(reading)

        assert isinstance(results[TP], ReadResult)


async def test_calls_that_have_to_wait_are_not_begun(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        nowhere = TopicPartition("nowhere", 0)
        request = ReadRequest(0, EVERYTHING)
        assert storage.try_read({TP: request, nowhere: request}, max_bytes=1) is None
        assert storage.try_ack("g", {nowhere: OffsetAndMetadata(1)}) is None
        for server in storage._redis.servers():  # type: ignore[attr-defined]
            server.connection.end("a test")
        assert storage.try_read({TP: request}, max_bytes=1) is None
        assert storage.try_ack("g", {TP: OffsetAndMetadata(1)}) is None


async def test_notified_commit_is_stored_and_followed(redis_server: RedisServer, client: redis.Redis) -> None:
    async with broker_on(redis_server) as storage:
        for tp in TPS:
            await append(storage, tp, numbered(3))
        end = (await storage.latest(TP)).high_watermark
        client.script_flush()
        offsets = {tp: OffsetAndMetadata(end, metadata="m") for tp in TPS}

        pending = storage.try_ack("g", offsets, generation_id=4)
        assert isinstance(pending, PendingAck)
        assert dict.fromkeys(TPS) == await results_of(pending)

        committed = await storage.committed("g", TPS)
        assert {end} == {each.offset for each in committed.values()}
        for tp in TPS:
            (group,) = client.xinfo_groups(storage._keyspace.stream(tp))  # type: ignore[attr-defined]
            assert b"g" == group["name"]

        refused = storage.try_ack("g", offsets, generation_id=3)
        assert isinstance(refused, PendingAck)
        assert all(isinstance(each, IllegalGeneration) for each in (await results_of(refused)).values())


async def test_commit_to_a_partition_without_state_is_waited_for(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(2))
        client.delete(storage._keyspace.partition(TP).state)  # type: ignore[attr-defined]

        pending = storage.try_ack("g", {TP: OffsetAndMetadata(1)})
        assert isinstance(pending, PendingAck)
        assert await answered(pending) is None
        assert {TP: None} == await pending.wait()


async def test_lost_connection_repeats_the_call(redis_server: RedisServer, client: redis.Redis) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(2))
        (server,) = storage._redis.servers()  # type: ignore[attr-defined]
        client.client_pause(
            60_000, all=False
        )  # so that the commit is not answered before the connection ends
        reading, acking = begun(storage, TP), acked(storage)
        events = [notified(reading), notified(acking)]
        server.connection.end("a test")
        client.client_unpause()

        with trio.fail_after(PATIENCE_S):
            for each in events:
                await each.wait()
        assert acking.known_results() is None
        results = reading.known_results() or await reading.wait()
        assert isinstance(results[TP], ReadResult)
        assert {TP: None} == await acking.wait()
        assert 1 == (await storage.committed("g", [TP]))[TP].offset


async def test_server_that_does_not_answer_is_absent(redis_server: RedisServer, client: redis.Redis) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(2))
        storage._redis.patience_s = 0.1  # type: ignore[attr-defined]
        client.client_pause(60_000, all=False)
        try:
            results = await answered(acked(storage))
        finally:
            client.client_unpause()

        assert isinstance(results[TP], KafkaStorageError)


async def test_abandoned_calls_notify_no_caller(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(2))
        called = []
        reading, acking = begun(storage, TP), storage.try_ack("g", {TP: OffsetAndMetadata(1)})
        assert isinstance(acking, PendingAck)
        for pending in (reading, acking):
            assert pending.notify(lambda: called.append(1))
            pending.abandon()
            pending.abandon()

        await storage.read({TP: ReadRequest(0, EVERYTHING)}, max_bytes=EVERYTHING)
        assert [] == called


async def test_calls_leave_no_reference_cycles(redis_server: RedisServer) -> None:
    async with broker_on(redis_server) as storage:
        await append(storage, TP, numbered(2))
        for _ in range(2):
            await answered(begun(storage, TP))
            await answered(acked(storage))
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await answered(begun(storage, TP))
                await answered(acked(storage))
            unreachable = gc.collect()
        finally:
            gc.enable()

        assert unreachable < 20


def acked(storage: Storage) -> PendingAck:
    pending = storage.try_ack("g", {TP: OffsetAndMetadata(1)})
    assert isinstance(pending, PendingAck)
    return pending
