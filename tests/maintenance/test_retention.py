"""The retention worker: it trims idle partitions, on one broker, and continues after a failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from korvet.config import Config
from korvet.maintenance.leases import LEASE_S, Leases
from korvet.maintenance.retention import RetentionWorker
from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import Storage, StorageDefaults, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.testing.environment import ManualClock
from korvet.testing.records import append, numbered
from korvet.tiered.log import Tiers
from tests.handlers.support import Shim

HOUR_MS = 3_600_000
INTERVAL_S = 300


def new_storage(clock: ManualClock | None = None) -> MemoryStorage:
    return MemoryStorage(StorageDefaults(retention_check_interval_ms=0), clock=clock or ManualClock())


def worker_on(storage: Storage) -> RetentionWorker:
    return RetentionWorker(storage, Config(), Leases(storage), Tiers(storage, Config()))


async def with_records(storage: Storage, clock: ManualClock, name: str, **settings: str) -> TopicPartition:
    await storage.create_topic(name, 1, {key.replace("_", "."): value for key, value in settings.items()})
    await append(storage, TopicPartition(name, 0), numbered(3, timestamp=clock()))
    return TopicPartition(name, 0)


async def log_start(storage: Storage, tp: TopicPartition) -> int:
    return (await storage.latest(tp)).log_start_offset


async def test_idle_partition_is_trimmed(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    storage = new_storage(clock)
    old = await with_records(storage, clock, "old", retention_ms=str(HOUR_MS))
    kept = await with_records(storage, clock, "kept", retention_ms="-1")
    with caplog.at_level(logging.INFO):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker_on(storage).run)
            await trio.sleep(1.5 * INTERVAL_S)
            before = await log_start(storage, old)
            clock.now_ms += HOUR_MS + 1
            await trio.sleep(INTERVAL_S)
            nursery.cancel_scope.cancel()

    assert [0, 3, 0] == [before, await log_start(storage, old), await log_start(storage, kept)]
    assert ["retention: old-0: new log start offset 3"] == [each.getMessage() for each in caplog.records]


async def test_failing_partition_is_logged_and_other_partitions_are_trimmed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    storage = new_storage(clock)
    await with_records(storage, clock, "bad", retention_ms="1")
    good = await with_records(storage, clock, "good", retention_ms="1")
    clock.now_ms += HOUR_MS

    async def enforce(tp: TopicPartition, **options: Any) -> Any:
        if tp.topic == "bad":
            raise KafkaStorageError("Redis: no")
        return await storage.enforce_retention(tp, **options)

    await worker_on(Shim(storage, enforce_retention=enforce)).trim_all()

    assert 3 == await log_start(storage, good)
    assert "retention: bad-0 cannot be trimmed: Redis: no" in caplog.text


async def test_topic_deleted_during_retention_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    storage = new_storage(clock)
    tp = await with_records(storage, clock, "gone", retention_ms="1")

    async def enforce(_: TopicPartition, **options: Any) -> Any:
        await storage.delete_topic(await storage.topic("gone"))
        return await storage.enforce_retention(tp, **options)

    await worker_on(Shim(storage, enforce_retention=enforce)).trim_all()

    assert "" == caplog.text


async def test_remote_topic_is_not_trimmed_while_its_archived_offset_is_unknown() -> None:
    clock = ManualClock()
    storage = new_storage(clock)
    await with_records(storage, clock, "archived", retention_ms="1", remote_storage_enable="true")
    clock.now_ms += HOUR_MS

    await worker_on(storage).trim_all()

    assert 0 == await log_start(storage, TopicPartition("archived", 0))


async def test_retention_is_retried_when_the_store_was_unavailable(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    storage = new_storage(clock)
    tp = await with_records(storage, clock, "old", retention_ms="1")
    clock.now_ms += HOUR_MS

    async def topics() -> Any:
        if trio.current_time() < 1.5 * INTERVAL_S:
            raise KafkaStorageError("the store is away")
        return await storage.topics()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_on(Shim(storage, topics=topics)).run)
        await trio.sleep(2.5 * INTERVAL_S)
        nursery.cancel_scope.cancel()

    assert 3 == await log_start(storage, tp)
    assert "retention: the topics cannot be listed: the store is away" in caplog.text


async def test_one_of_two_brokers_trims(autojump_clock: MockClock) -> None:
    storage = new_storage()
    asked: dict[str, int] = {}

    def counting(name: str) -> Storage:
        async def topics() -> Any:
            asked[name] = asked.get(name, 0) + 1
            return {}

        return Shim(storage, topics=topics)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_on(counting("first")).run)
        await trio.sleep(LEASE_S)
        nursery.start_soon(worker_on(counting("second")).run)
        await trio.sleep(3 * INTERVAL_S)
        nursery.cancel_scope.cancel()

    assert {"first": 3} == asked
