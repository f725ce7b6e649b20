"""Seeking by time: the first offset whose record's own timestamp is at least the target, whatever the order."""

from __future__ import annotations

import random

import pytest

from korvet.protocol.compression import Codec
from korvet.storage.interface import OffsetAndTimestamp, Storage, TopicPartition
from korvet.testing.contract.appending import log_append_time_topic
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import T0, Record, StoredRecord, append, append_batch, batch, numbered, stored

YEAR_2100 = 4_102_444_800_000


class TimeContract(Contract):
    async def test_seek_ts_finds_an_exact_timestamp(self, storage: Storage, tp: TopicPartition) -> None:
        records = [Record(timestamp=T0 + 10 * n) for n in range(10)]
        base = (await append(storage, tp, records)).base_offset
        found = [await storage.seek_ts(tp, T0 + 10 * n) for n in range(10)]

        assert [OffsetAndTimestamp(base + n, T0 + 10 * n) for n in range(10)] == found

    async def test_seek_ts_between_two_timestamps_finds_the_later_one(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        records = [Record(timestamp=T0 + 10 * n) for n in range(10)]
        base = (await append(storage, tp, records)).base_offset
        found = [await storage.seek_ts(tp, T0 + 10 * n - 9) for n in range(1, 10)]

        assert [OffsetAndTimestamp(base + n, T0 + 10 * n) for n in range(1, 10)] == found

    async def test_seek_ts_after_the_last_timestamp_is_none(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(3))

        assert await storage.seek_ts(tp, T0 + 1) is None
        assert await storage.seek_ts(tp, 2**62) is None

    async def test_seek_in_an_empty_log_is_none(self, storage: Storage, tp: TopicPartition) -> None:
        assert await storage.seek_ts(tp, 0) is None
        assert await storage.seek_max_ts(tp) is None

    async def test_seek_in_a_truncated_empty_log_is_none(self, storage: Storage, tp: TopicPartition) -> None:
        base = (await append(storage, tp, numbered(3))).base_offset
        await storage.truncate_before(tp, base + 3)

        assert await storage.seek_ts(tp, 0) is None
        assert await storage.seek_max_ts(tp) is None

    async def test_seek_ts_finds_the_first_of_equal_timestamps(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        base = (await append(storage, tp, numbered(3, timestamp=T0))).base_offset
        second = (await append(storage, tp, numbered(3, timestamp=T0 + 1))).base_offset
        await append(storage, tp, numbered(3, timestamp=T0 + 1))

        assert OffsetAndTimestamp(base, T0) == await storage.seek_ts(tp, T0)
        assert OffsetAndTimestamp(second, T0 + 1) == await storage.seek_ts(tp, T0 + 1)
        assert OffsetAndTimestamp(second, T0 + 1) == await storage.seek_max_ts(tp)

    @pytest.mark.parametrize("codec", list(Codec))
    async def test_seek_ts_finds_records_inside_compressed_batches(
        self, storage: Storage, tp: TopicPartition, codec: Codec
    ) -> None:
        records = [Record(b"x" * 100, timestamp=T0 + n) for n in range(100)]
        base = (await append_batch(storage, tp, batch(records, codec=codec))).base_offset

        assert OffsetAndTimestamp(base + 57, T0 + 57) == await storage.seek_ts(tp, T0 + 57)
        assert OffsetAndTimestamp(base + 99, T0 + 99) == await storage.seek_max_ts(tp)

    async def test_seek_ts_finds_the_lowest_offset_of_unordered_timestamps(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        times = [50, 10, 70, 20, 70, 90, 0, 90]
        wanted = await append_with_times(storage, tp, [[T0 + time] for time in times])
        found = [await storage.seek_ts(tp, T0 + time) for time in (0, 50, 51, 70, 71, 90, 91)]

        assert [first_at(wanted, T0 + time) for time in (0, 50, 51, 70, 71, 90, 91)] == found
        assert OffsetAndTimestamp(wanted[0].offset, T0 + 50) == found[0]
        assert OffsetAndTimestamp(wanted[5].offset, T0 + 90) == await storage.seek_max_ts(tp)

    async def test_seek_ts_with_unordered_timestamps_within_a_batch(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        times = [50, 10, 70, 20, 70, 90, 0, 90]
        wanted = await append_with_times(storage, tp, [[T0 + time for time in times]])
        found = [await storage.seek_ts(tp, T0 + time) for time in range(95)]

        assert [first_at(wanted, T0 + time) for time in range(95)] == found
        assert OffsetAndTimestamp(wanted[5].offset, T0 + 90) == await storage.seek_max_ts(tp)

    async def test_record_of_the_year_2100_does_not_hide_earlier_timestamps(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        wanted = stored([Record(timestamp=T0)], (await append(storage, tp, numbered(1))).base_offset)
        far = (await append(storage, tp, [Record(timestamp=YEAR_2100)])).base_offset
        wanted.append(StoredRecord(far, b"", timestamp=YEAR_2100))
        times = [[T0 + 1000 * n + m for m in range(20)] for n in range(20)]
        wanted += await append_with_times(storage, tp, times, size=1_000)
        await storage.truncate_before(tp, far + 1)
        targets = [T0 + 1000 * n + m for n in range(20) for m in (-1, 0, 7, 19)]
        found = [await storage.seek_ts(tp, target) for target in targets]

        assert [first_at(wanted[2:], target) for target in targets] == found

    async def test_record_of_the_year_2100_is_found_at_the_start(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        far = (await append(storage, tp, [Record(timestamp=YEAR_2100)])).base_offset
        await append(storage, tp, numbered(5))

        assert OffsetAndTimestamp(far, YEAR_2100) == await storage.seek_ts(tp, T0)
        assert OffsetAndTimestamp(far, YEAR_2100) == await storage.seek_max_ts(tp)

    async def test_seek_ts_skips_records_without_a_timestamp(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(3, timestamp=-1))
        second = (await append(storage, tp, numbered(3, timestamp=0))).base_offset

        assert OffsetAndTimestamp(second, 0) == await storage.seek_ts(tp, 0)
        assert OffsetAndTimestamp(second, 0) == await storage.seek_max_ts(tp)

    async def test_seek_ts_finds_log_append_times(self, storage: Storage, environment: Environment) -> None:
        tp = await log_append_time_topic(storage, environment)
        start = (await storage.latest(tp)).log_start_offset
        first = await append(storage, tp, numbered(3, timestamp=YEAR_2100))
        time = first.log_append_time_ms

        assert OffsetAndTimestamp(start, time) == await storage.earliest(tp)
        assert OffsetAndTimestamp(first.base_offset, time) == await storage.seek_ts(tp, T0)
        assert OffsetAndTimestamp(first.base_offset, time) == await storage.seek_ts(tp, time)
        assert await storage.seek_ts(tp, time + 1) is None
        assert OffsetAndTimestamp(first.base_offset, time) == await storage.seek_max_ts(tp)

    @pytest.mark.parametrize("seed", [1, 2])
    async def test_seek_ts_with_any_order_in_a_large_log(
        self, storage: Storage, tp: TopicPartition, seed: int
    ) -> None:
        chance = random.Random(seed)  # noqa: S311  the same every time
        times = [
            [T0 + 100 * n + chance.randrange(-2000, 2000) for _ in range(chance.randrange(1, 30))]
            for n in range(100)
        ]
        wanted = await append_with_times(storage, tp, times, size=1_000)
        for _ in range(3):
            targets = [T0 + chance.randrange(-3000, 13_000) for _ in range(50)]
            found = [await storage.seek_ts(tp, target) for target in targets]

            assert [first_at(wanted, target) for target in targets] == found
            assert largest(wanted) == await storage.seek_max_ts(tp)
            wanted = wanted[len(wanted) // 3 :]
            await storage.truncate_before(tp, wanted[0].offset)

    async def test_seek_ts_finds_records_in_20_mb(self, storage: Storage, tp: TopicPartition) -> None:
        times = [[T0 + 1000 * n - m * 30 for m in range(50)] for n in range(40)]
        wanted = await append_with_times(storage, tp, times, size=10_000)
        targets = [T0 + 1000 * n - m for n in range(0, 41, 3) for m in (0, 1, 700, 5000)]
        found = [await storage.seek_ts(tp, target) for target in targets]

        assert [first_at(wanted, target) for target in targets] == found
        assert largest(wanted) == await storage.seek_max_ts(tp)


async def append_with_times(
    storage: Storage, tp: TopicPartition, batches: list[list[int]], *, size: int = 10
) -> list[StoredRecord]:
    """Append a batch for each list of timestamps. Return the records that consumers must receive."""
    wanted = []
    for times in batches:
        records = [Record(b"x" * size, timestamp=time) for time in times]
        wanted += stored(records, (await append(storage, tp, records)).base_offset)
    return wanted


def first_at(records: list[StoredRecord], timestamp: int) -> OffsetAndTimestamp | None:
    for record in records:
        if record.timestamp >= timestamp:
            return OffsetAndTimestamp(record.offset, record.timestamp)
    return None


def largest(records: list[StoredRecord]) -> OffsetAndTimestamp | None:
    record = max(records, key=lambda each: each.timestamp)  # the first of several
    return OffsetAndTimestamp(record.offset, record.timestamp)
