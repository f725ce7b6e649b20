"""Compaction in memory while others append, trim and delete; and what it does to the budget."""

from __future__ import annotations

import pytest
import trio

from korvet.concurrency import time_slices
from korvet.storage.interface import Storage, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.testing.contract.compaction import content, keyed, latest_of
from korvet.testing.records import Record, append, records_from

TP = TopicPartition("t", 0)
LARGE = b"x" * 20_000


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> MemoryStorage:
    """A storage whose compaction lets other tasks run after each batch."""
    monkeypatch.setattr(time_slices, "SLICE_S", -1.0)
    return MemoryStorage()


async def fill(storage: Storage, batches: int = 60) -> None:
    await storage.create_topic("t", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for number in range(batches):
        await append(storage, TP, [Record(LARGE, b"%d" % (key + number % 2)) for key in range(3)])


async def test_compacted_records_are_released_from_the_budget(storage: MemoryStorage) -> None:
    empty = storage._budget.used
    await fill(storage)
    full = storage._budget.used
    await storage.compact(TP)
    compacted = storage._budget.used
    await storage.delete_topic(await storage.topic("t"))

    assert compacted < full / 20
    assert empty == storage._budget.used


async def test_small_segments_are_merged(storage: MemoryStorage) -> None:
    await fill(storage)
    segments = len(storage._logs[TP].segments)
    await storage.compact(TP)
    for number in range(5):
        await append(storage, TP, keyed([100 + number], b"new"))
        await storage.compact(TP)

    assert segments > 10
    assert 1 == len(storage._logs[TP].segments)


async def test_records_trimmed_during_compaction_are_not_restored(storage: MemoryStorage) -> None:
    await fill(storage)
    end = (await storage.latest(TP)).high_watermark
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.compact, TP)
        for offset in range(0, end - 1, 7):
            await trio.lowlevel.checkpoint()
            await storage.truncate_before(TP, offset)
            assert offset == (await storage.latest(TP)).log_start_offset
    found = await records_from(storage, TP)
    await append(storage, TP, [Record(LARGE, b"1")])
    await storage.compact(TP)

    assert offset <= found[0].offset
    assert 3 >= len(await records_from(storage, TP))
    assert storage._logs[TP].size == sum(segment.size for segment in storage._logs[TP].segments)


async def test_topic_deleted_during_compaction_is_released_from_the_budget(storage: MemoryStorage) -> None:
    empty = storage._budget.used
    await fill(storage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.compact, TP)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        await storage.delete_topic(await storage.topic("t"))

    assert empty == storage._budget.used


async def test_records_appended_during_compaction_are_kept(storage: MemoryStorage) -> None:
    await fill(storage)
    before = latest_of(await records_from(storage, TP))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.compact, TP)
        # After the first of these it has its first turn, or has had it; after the second it knows what it is about.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        for number in range(30):
            await trio.lowlevel.checkpoint()
            await append(storage, TP, keyed([1], b"%d" % number))

    expected = [
        *((each.key, each.value) for each in before),
        *((b"1", b"%d" % number) for number in range(30)),
    ]
    assert expected == await content(storage, TP)
