"""Guarantees of the memory backend beyond the storage contract."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import KafkaStorageError, OutOfOrderSequenceNumber
from korvet.protocol.record_batch import RecordBatch, parse_batches
from korvet.storage import memory_log
from korvet.storage.interface import (
    AppendResult,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ReadRequest,
    ReadResult,
    StorageDefaults,
    TopicPartition,
)
from korvet.storage.memory import MemoryStorage
from korvet.storage.memory_log import BATCH_COST, LOG_COST, SEGMENT_BYTES, PartitionLog
from korvet.storage.producer_state import PRODUCER_COST
from korvet.testing.environment import ManualClock
from korvet.testing.records import (
    T0,
    Producer,
    Record,
    append,
    append_batch,
    batch,
    batches_of,
    numbered,
    read,
    records_from,
)

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


async def memory(
    *, max_bytes: int = 10_000_000, clock: ManualClock | None = None, **settings: str
) -> MemoryStorage:
    """Return a storage with a topic of two partitions. Settings have underscores instead of dots."""
    storage = MemoryStorage(max_bytes=max_bytes, clock=clock or ManualClock())
    await storage.create_topic(
        "orders", 2, {name.replace("_", "."): value for name, value in settings.items()}
    )
    return storage


def framed(appended: RecordBatch, slack: int) -> RecordBatch:
    """Return the batch as a view of a larger buffer, like that of a request."""
    frame = bytearray(slack) + bytearray(appended.buffer)
    return RecordBatch(memoryview(frame)[slack:])


# --- Batches stay what they are ---------------------------------------------------------------------------------


async def test_storage_layout_is_stored_without_effect() -> None:
    storage = await memory(storage_layout="batch")
    topic = await storage.topic("orders")
    await append(storage, TP, numbered(2))

    assert topic is not None
    assert "batch" == topic.settings["storage.layout"]
    assert 2 == len(await records_from(storage, TP))


async def test_batch_is_stored_and_read_without_copying() -> None:
    storage = await memory()
    appended = framed(batch([Record(b"x" * 1000)]), slack=200)
    frame = appended.buffer.obj
    await append_batch(storage, TP, appended)
    (found,) = (await read(storage, TP, 0)).batches.buffers

    assert isinstance(found, memoryview)
    assert found.obj is frame


async def test_small_batch_of_a_large_request_is_copied() -> None:
    storage = await memory()
    appended = framed(batch([Record(b"x" * 1000)]), slack=100_000)
    frame = appended.buffer.obj
    await append_batch(storage, TP, appended)
    found = await read(storage, TP, 0)

    assert len(gc.get_referrers(frame)) <= 2  # this frame's own names
    assert storage._budget.used < 2 * LOG_COST + 1000 + BATCH_COST + 200
    assert 0 == batches_of(found)[0].base_offset


async def test_immutable_batch_is_copied() -> None:
    storage = await memory()
    await append_batch(storage, TP, RecordBatch(bytes(batch(numbered(1)).buffer)))
    await append_batch(storage, TP, RecordBatch(bytes(batch(numbered(1)).buffer)))

    assert [0, 1] == [record.offset for record in await records_from(storage, TP)]


async def test_read_batches_survive_their_retention() -> None:
    storage = await memory()
    await append(storage, TP, numbered(3))
    found = await read(storage, TP, 0)
    await storage.truncate_before(TP, 3)

    assert 3 == batches_of(found)[0].record_count


async def test_seek_ts_uses_the_header_of_a_damaged_batch() -> None:
    storage = await memory()
    appended = batch([Record(b"x" * 100, timestamp=T0 + 5)] * 3)
    appended.buffer[61:90] = b"\xff" * 29
    await append_batch(storage, TP, appended)
    await append(storage, TP, [Record(timestamp=T0 + 9)])
    await storage.truncate_before(TP, 1)

    assert OffsetAndTimestamp(1, T0 + 5) == await storage.earliest(TP)
    assert OffsetAndTimestamp(1, T0 + 5) == await storage.seek_ts(TP, T0)
    assert OffsetAndTimestamp(3, T0 + 9) == await storage.seek_ts(TP, T0 + 6)


# --- The limit --------------------------------------------------------------------------------------------------


async def test_full_storage_refuses_batches_with_advice() -> None:
    storage = await memory(max_bytes=100_000)
    results = [(await storage.append({TP: batch([Record(b"x" * 10_000)])}))[TP] for _ in range(12)]
    kinds = [type(result) for result in results]
    refused = results[-1]

    assert [AppendResult] * 9 + [KafkaStorageError] * 3 == kinds
    assert isinstance(refused, KafkaStorageError)
    assert "max_bytes" in refused.message
    assert "retention" in refused.message
    assert 9 == len(await records_from(storage, TP))


async def test_refused_batch_changes_no_state() -> None:
    storage = await memory(max_bytes=50_000)
    used = storage._budget.used
    big = [Record(b"x" * 60_000)]
    with pytest.raises(KafkaStorageError):
        await append(storage, TP, big, producer=Producer(7))

    assert storage._budget.used == used
    assert 0 == (await storage.latest(TP)).high_watermark
    assert not (await append(storage, TP, numbered(1), producer=Producer(7))).duplicate


async def test_batches_do_not_overtake_a_refused_one_of_their_producer() -> None:
    storage = await memory(max_bytes=50_000)
    big = batch([Record(b"x" * 60_000)], producer=Producer(7, sequence=1))
    await append(storage, TP, numbered(1), producer=Producer(7))
    with pytest.raises(KafkaStorageError):
        await append_batch(storage, TP, big)
    for sequence in (2, 3):
        with pytest.raises(KafkaStorageError):
            await append(storage, TP, numbered(1), producer=Producer(7, sequence=sequence))
    await append(storage, TP, numbered(1), producer=Producer(8))
    for sequence in (1, 2, 3):
        await append(storage, TP, numbered(1), producer=Producer(7, sequence=sequence))

    assert 5 == len(await records_from(storage, TP))


async def test_batch_that_does_not_fit_does_not_fail_other_partitions() -> None:
    storage = await memory(max_bytes=50_000)
    results = await storage.append({TP: batch([Record(b"x" * 60_000)]), OTHER: batch(numbered(1))})

    assert isinstance(results[TP], KafkaStorageError)
    assert isinstance(results[OTHER], AppendResult)


async def test_full_storage_enforces_retention_in_every_partition_first() -> None:
    clock = ManualClock()
    storage = await memory(max_bytes=1_000_000, clock=clock, retention_ms="3600000")
    for _ in range(9):
        await append(storage, OTHER, [Record(b"x" * 100_000, timestamp=clock.now_ms)])
    with pytest.raises(KafkaStorageError):
        await append(storage, TP, [Record(b"x" * 100_000, timestamp=clock.now_ms)])
    clock.now_ms += 3_600_001
    await append(storage, TP, [Record(b"x" * 100_000, timestamp=clock.now_ms)])

    assert [] == await records_from(storage, OTHER)
    assert 9 == (await storage.latest(OTHER)).log_start_offset


async def test_full_storage_limits_the_rate_of_retention_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    storage = await memory(max_bytes=50_000, clock=clock)
    looks: list[int] = []
    monkeypatch.setattr(PartitionLog, "enforce_retention", lambda _, now_ms: looks.append(now_ms))
    for _ in range(50):
        clock.now_ms += 10
        await storage.append({TP: batch([Record(b"x" * 60_000)])})

    assert 5 == len(looks)  # every 100 ms, in the partition that was asked for


async def test_truncated_and_deleted_records_are_released_from_the_budget() -> None:
    storage = await memory(max_bytes=1_000_000)
    empty = storage._budget.used
    for _ in range(9):
        await append(storage, TP, [Record(b"x" * 100_000)])
    await storage.truncate_before(TP, 9)
    truncated = storage._budget.used
    for number in range(9):
        await append(storage, TP, [Record(b"x" * 100_000)], producer=Producer(number))
    await storage.ack("billing", {TP: OffsetAndMetadata(3, metadata="m" * 100)})
    topic = await storage.topic("orders")
    assert topic is not None
    await storage.delete_topic(topic)

    assert 2 * LOG_COST == empty
    assert truncated == empty
    assert 0 == storage._budget.used


async def test_committed_offsets_and_documents_count_against_the_budget() -> None:
    storage = await memory(max_bytes=20_000)
    empty = storage._budget.used
    position = OffsetAndMetadata(1, metadata="m" * 10_000)
    await storage.ack("billing", {TP: position})
    await storage.ack("billing", {TP: position})
    refused = await storage.ack("shipping", {TP: position})
    with pytest.raises(KafkaStorageError):
        await storage.save("k", "x", b"x" * 10_000, expected_version=0)
    await storage.forget("billing")
    await storage.save("k", "x", b"x" * 10_000, expected_version=0)
    await storage.save("k", "x", None, expected_version=1)

    assert isinstance(refused[TP], KafkaStorageError)
    assert {} == await storage.committed("shipping")
    assert storage._budget.used == empty


async def test_topics_that_exceed_the_budget_are_not_created() -> None:
    storage = MemoryStorage(max_bytes=100 * LOG_COST)
    with pytest.raises(KafkaStorageError):
        await storage.create_topic("wide", 101, {})
    await storage.create_topic("wide", 100, {})

    assert ["wide"] == list(await storage.topics())


async def test_expired_producers_are_released_from_the_budget() -> None:
    clock = ManualClock()
    storage = await memory(clock=clock)
    for number in range(100):
        await append(storage, TP, numbered(1), producer=Producer(number))
    before = storage._budget.used
    clock.now_ms += StorageDefaults().producer_id_expiration_ms
    await append(storage, TP, numbered(1), producer=Producer(0))

    assert before - storage._budget.used > 99 * PRODUCER_COST - 1000
    with pytest.raises(OutOfOrderSequenceNumber):
        await append(storage, TP, numbered(1), producer=Producer(0, sequence=5))


async def test_budget_is_close_to_the_memory_used_by_python() -> None:
    storage = await memory(max_bytes=100_000_000)
    frames = [framed(batch([Record(b"x" * 50)]), slack=60) for _ in range(5000)]
    frames += [framed(batch([Record(b"x" * 50)]), slack=6000) for _ in range(1000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    copies = [RecordBatch(memoryview(bytearray(each.buffer.obj))[-len(each.buffer) :]) for each in frames]
    counted_before = storage._budget.used
    for number in range(len(copies)):
        await append_batch(storage, TP, copies[number])
        copies[number] = frames[number]
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = storage._budget.used - counted_before

    assert 0.6 * counted < taken < 1.1 * counted


# --- Segments ---------------------------------------------------------------------------------------------------


async def test_retention_drops_whole_segments_from_the_front() -> None:
    storage = await memory(retention_ms="-1", retention_bytes=str(4 * SEGMENT_BYTES))
    for _ in range(40):
        await append(storage, TP, [Record(b"x" * (SEGMENT_BYTES // 4))])
    log = storage._logs[TP]

    assert 4 * SEGMENT_BYTES <= log.size <= 5.2 * SEGMENT_BYTES
    assert log.size == sum(segment.size for segment in log.segments)
    assert log.log_start_offset == log.segments[0].last_offsets[0]


async def test_small_batches_of_a_closed_segment_share_one_buffer() -> None:
    storage = await memory()
    values = [b"%d" % number * 30 for number in range(3_000)]
    for value in values:
        await append(storage, TP, [Record(value)])
    log = storage._logs[TP]
    closed = log.segments[:-1]

    assert len(closed) >= 2
    for segment in closed:
        assert 1 == len(segment.buffers(0, segment.count))
        assert segment.cost < 1.25 * segment.size
    assert 2 * LOG_COST + sum(segment.cost for segment in log.segments) == storage._budget.used
    assert values == [record.value for record in await records_from(storage, TP, 0, max_bytes=10_000)]
    for offset in (0, 1, closed[0].last_offsets[-1], closed[0].last_offsets[-1] + 1, 2_999):
        (found, *_) = batches_of(await read(storage, TP, offset, max_bytes=1))
        assert offset == found.base_offset


async def test_large_batches_of_a_closed_segment_are_not_copied() -> None:
    storage = await memory()
    for _ in range(12):
        await append(storage, TP, [Record(bytes(SEGMENT_BYTES // 4))])
    segment = storage._logs[TP].segments[0]

    assert len(segment.buffers(0, segment.count)) == segment.count > 1


@pytest.mark.parametrize("cut", [1, 700, 1_500, 2_999])
async def test_closed_segment_can_be_truncated(cut: int) -> None:
    storage = await memory()
    for number in range(3_000):
        await append(storage, TP, [Record(b"%d" % number * 30, timestamp=T0 + number)])
    await storage.truncate_before(TP, cut)
    log = storage._logs[TP]

    assert 3_000 - cut == len(await records_from(storage, TP))
    assert OffsetAndTimestamp(cut, T0 + cut) == await storage.seek_ts(TP, 0)
    assert log.size == sum(segment.size for segment in log.segments)
    assert 2 * LOG_COST + sum(segment.cost for segment in log.segments) == storage._budget.used


async def test_log_size_is_exact_after_a_truncation_inside_a_batch() -> None:
    storage = await memory()
    for _ in range(10):
        await append(storage, TP, [Record(b"x" * 1000)] * 4)
    await storage.truncate_before(TP, 18)
    log = storage._logs[TP]
    result = (await storage.read({TP: ReadRequest(18, 10**6)}, max_bytes=10**6))[TP]

    assert isinstance(result, ReadResult)
    assert log.size == result.size == log.segments[0].size
    assert 2 * LOG_COST + sum(segment.cost for segment in log.segments) == storage._budget.used


async def test_reads_between_offset_gaps_find_the_next_batch() -> None:
    clock = ManualClock()
    storage = await memory(clock=clock, offset_mapping="timestamp", offset_sequence_bits="1")
    wanted = []
    for step in range(300):
        clock.now_ms += step % 7
        result = await append(storage, TP, [Record(b"x" * 3000, timestamp=step)] * (1 + step % 3))
        wanted += list(range(result.base_offset, result.base_offset + 1 + step % 3))
    offsets = [record.offset for record in await records_from(storage, TP, 0)]
    positions = range(wanted[0], wanted[-1])
    found = [batches_of(await read(storage, TP, at, max_bytes=1))[0].last_offset for at in positions[-200:]]

    assert wanted == offsets
    assert all(last >= at for at, last in zip(positions[-200:], found, strict=True))


# --- Watches ----------------------------------------------------------------------------------------------------


async def test_append_wakes_only_watchers_of_its_partition() -> None:
    storage = await memory()
    woken: list[TopicPartition] = []

    async def wait_for(tp: TopicPartition, *, task_status: trio.TaskStatus[None]) -> None:
        with storage.watch([tp]) as watch:
            task_status.started()
            await watch.wait()
            woken.append(tp)

    async with trio.open_nursery() as nursery:
        await nursery.start(wait_for, TP)
        await nursery.start(wait_for, OTHER)
        await append(storage, TP, numbered(1))
        await wait_all_tasks_blocked()
        first = list(woken)
        await append(storage, OTHER, numbered(1))

    assert [TP] == first
    assert [TP, OTHER] == woken


async def test_wait_sleeps_until_the_next_append() -> None:
    storage = await memory()
    with storage.watch([TP]) as watch:
        await append(storage, TP, numbered(1))
        await watch.wait()
        with trio.move_on_after(0) as scope:
            await watch.wait()

    assert scope.cancelled_caught


async def test_duplicates_and_refused_batches_wake_no_watchers() -> None:
    storage = await memory()
    await append(storage, TP, numbered(1), producer=Producer(7))
    with storage.watch([TP]) as watch:
        await append(storage, TP, numbered(1), producer=Producer(7))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, TP, numbered(1), producer=Producer(7, sequence=5))
        with trio.move_on_after(0) as scope:
            await watch.wait()

    assert scope.cancelled_caught


async def test_closed_watches_are_removed() -> None:
    storage = await memory()
    for _ in range(10):
        with storage.watch([TP, OTHER, TP]), storage.watch([TP]):
            assert 2 == len(storage._watches[TP])

    assert {} == storage._watches


# --- Speed, roughly: bounds that only a scan would break ----------------------------------------------------------


async def test_appends_and_reads_access_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = await memory(max_bytes=1_000_000_000)
    for number in range(2000):
        await append(storage, TP, [Record(b"x" * 1000, timestamp=T0 + number)])
    looked_at: list[object] = []

    def counted(buffer: Buffer) -> list[RecordBatch]:
        looked_at.append(buffer)
        return parse_batches(buffer)

    monkeypatch.setattr(memory_log, "parse_batches", counted)
    await append(storage, TP, [Record(timestamp=T0 + 2000)])
    await read(storage, TP, 1500)
    appended_and_read = len(looked_at)
    await storage.seek_ts(TP, T0 + 1700)
    await storage.seek_max_ts(TP)
    await storage.earliest(TP)

    assert 0 == appended_and_read
    assert 3 == len(looked_at)
