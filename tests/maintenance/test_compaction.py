"""The compaction worker: the partitions that it compacts, its schedule, and its log lines."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from korvet.config import Config
from korvet.maintenance.compaction import CompactionWorker
from korvet.maintenance.leases import LEASE_S, Leases
from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import Compacted, Storage, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.testing.records import Record, append, records_from
from tests.handlers.support import Shim

BACKOFF_S = 15


def worker_on(storage: Storage) -> CompactionWorker:
    return CompactionWorker(storage, Config(), Leases(storage))


async def create(storage: Storage, name: str, partitions: int = 1, policy: str = "compact") -> TopicPartition:
    await storage.create_topic(name, partitions, {"cleanup.policy": policy})
    return TopicPartition(name, 0)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "korvet.maintenance.compaction"]


async def compact(caplog: pytest.LogCaptureFixture, *records: Record) -> tuple[list[bytes | None], list[str]]:
    """Let a worker compact a topic with these records. Return the values that are left, and the log messages."""
    storage = MemoryStorage()
    tp = await create(storage, "t")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_on(storage).run)
        await trio.sleep(1)
        await append(storage, tp, list(records))
        with caplog.at_level(logging.INFO):
            await trio.sleep(4 * BACKOFF_S)
        nursery.cancel_scope.cancel()
    return [each.value for each in await records_from(storage, tp)], messages(caplog)


async def test_dirty_partition_is_compacted_and_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    left, (said,) = await compact(caplog, Record(b"1", b"a"), Record(b"2", b"a"))

    assert [b"2"] == left
    assert said.startswith("compaction: t-0: every key once up to offset 2; 79 bytes have become 70 in")


async def test_compaction_without_removed_records_is_not_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    left, said = await compact(caplog, Record(b"1", b"a"), Record(b"2", b"b"))

    assert [b"1", b"2"] == left
    assert [] == said


async def test_all_partitions_of_compacted_topics_are_compacted(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    await create(storage, "a", 2)
    await create(storage, "b", policy="compact,delete")
    await create(storage, "c", policy="delete")
    asked: list[tuple[float, str, int]] = []

    async def compact(tp: TopicPartition) -> Any:
        asked.append((trio.current_time(), *tp))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_on(Shim(storage, compact=compact)).run)
        await trio.sleep(1.5 * BACKOFF_S)
        nursery.cancel_scope.cancel()

    compacted = [("a", 0), ("a", 1), ("b", 0)]
    assert [(0, *tp) for tp in [*compacted, ("c", 0)]] == asked[:4]
    assert [(BACKOFF_S, *tp) for tp in compacted] == asked[4:]


async def test_failing_partition_is_logged_once_and_other_partitions_are_compacted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    await create(storage, "bad")
    await create(storage, "good")
    asked = []

    async def compact(tp: TopicPartition) -> Any:
        asked.append(tp.topic)
        if tp.topic == "bad":
            raise KafkaStorageError("Redis is full")
        return Compacted(1, 2, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_on(Shim(storage, compact=compact)).run)
        await trio.sleep(2.5 * BACKOFF_S)
        nursery.cancel_scope.cancel()

    assert ["bad", "good"] * 3 == asked
    assert ["compaction: bad-0: Redis is full"] == messages(caplog)


async def test_topic_deleted_during_compaction_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    tp = await create(storage, "gone")

    async def compact(_: TopicPartition) -> Any:
        await storage.delete_topic(await storage.topic("gone"))
        return await storage.compact(tp)

    await worker_on(Shim(storage, compact=compact)).compact_all()

    assert [] == messages(caplog)


async def test_one_of_two_brokers_compacts(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    await create(storage, "t")
    asked: dict[str, int] = {}

    def counting(name: str) -> Storage:
        async def compact(_: TopicPartition) -> Any:
            asked[name] = asked.get(name, 0) + 1

        return Shim(storage, compact=compact)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker_on(counting("first")).run)
        await trio.sleep(LEASE_S)
        nursery.start_soon(worker_on(counting("second")).run)
        await trio.sleep(10 * LEASE_S)
        nursery.cancel_scope.cancel()

    assert ["first"] == list(asked)
