"""Tests that depend on the time, for stores whose clock can be set."""

from __future__ import annotations

import pytest

from korvet.storage.interface import Storage, TopicPartition
from korvet.storage.offsets import TimestampOffsets
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment, ManualClock
from korvet.testing.records import T0, Producer, Record, append, numbered, records_from, stored

DAY_MS = 86_400_000


class ClockContract(Contract):
    @pytest.fixture
    def clock(self, environment: Environment) -> ManualClock:
        assert environment.clock is not None, "this part of the contract sets the clock"
        return environment.clock

    @pytest.fixture
    async def ticks(self, storage: Storage) -> TopicPartition:
        await storage.create_topic("ticks", 1, {"offset.mapping": "timestamp", "offset.sequence.bits": "10"})
        return TopicPartition("ticks", 0)

    async def test_timestamp_offsets_contain_the_time_of_the_clock(
        self, storage: Storage, clock: ManualClock, ticks: TopicPartition
    ) -> None:
        bases = []
        for _ in range(3):
            bases.append((await append(storage, ticks, numbered(2))).base_offset)
            clock.now_ms += 1000

        assert [clock.now_ms - 1000 * n << 10 for n in (3, 2, 1)] == bases

    async def test_offsets_of_appends_in_one_millisecond_are_consecutive(
        self, storage: Storage, clock: ManualClock, ticks: TopicPartition
    ) -> None:
        bases = [(await append(storage, ticks, numbered(700))).base_offset for _ in range(3)]
        mapper = TimestampOffsets(10)

        assert [
            (clock.now_ms, 0),
            (clock.now_ms, 700),
            (clock.now_ms + 1, 376),
        ] == [mapper.pair(base) for base in bases]

    async def test_offsets_increase_when_the_clock_steps_back(
        self, storage: Storage, clock: ManualClock, ticks: TopicPartition
    ) -> None:
        wanted = []
        for step in (0, -5000, -1, 3000, 2001, 1):
            clock.now_ms += step
            wanted += stored(numbered(3), (await append(storage, ticks, numbered(3))).base_offset)

        assert wanted == await records_from(storage, ticks)
        assert [record.offset for record in wanted] == sorted(record.offset for record in wanted)
        assert list(range(12)) == [record.offset - wanted[0].offset for record in wanted[:12]]

    async def test_producers_expire_after_a_day_without_appends(
        self, storage: Storage, clock: ManualClock, ticks: TopicPartition
    ) -> None:
        await append(storage, ticks, numbered(1), producer=Producer(7, epoch=2))
        clock.now_ms += DAY_MS - 1
        known = await append(storage, ticks, numbered(1), producer=Producer(7, epoch=2))
        clock.now_ms += 1
        expired = await append(storage, ticks, numbered(1), producer=Producer(7, epoch=2))

        assert (True, False) == (known.duplicate, expired.duplicate)

    async def test_active_producers_do_not_expire(
        self, storage: Storage, clock: ManualClock, ticks: TopicPartition
    ) -> None:
        for sequence in range(5):
            await append(storage, ticks, numbered(1), producer=Producer(7, sequence=sequence))
            clock.now_ms += DAY_MS - 1
        again = await append(storage, ticks, numbered(1), producer=Producer(7, sequence=2))

        assert again.duplicate

    async def test_records_expire_by_timestamp_after_a_minimum_age(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.create_topic("kept", 1, {"offset.mapping": "dense", "retention.ms": str(DAY_MS)})
        tp = TopicPartition("kept", 0)
        await append(storage, tp, [Record(b"x" * 1_000_000, timestamp=T0)])
        clock.now_ms += 299_999
        await append(storage, tp, [Record(b"x" * 1_000_000, timestamp=clock.now_ms)])
        before = (await storage.latest(tp)).log_start_offset
        clock.now_ms += 1
        await append(storage, tp, [Record(timestamp=clock.now_ms)])
        after = (await storage.latest(tp)).log_start_offset

        assert (0, 1) == (before, after)

    async def test_log_append_times_are_those_of_the_clock(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.create_topic("clocked", 1, {"message.timestamp.type": "LogAppendTime"})
        tp = TopicPartition("clocked", 0)
        first = await append(storage, tp, numbered(1))
        clock.now_ms += 5
        second = await append(storage, tp, numbered(1))
        times = [record.timestamp for record in await records_from(storage, tp)]

        assert [first.log_append_time_ms, second.log_append_time_ms] == times
        assert [clock.now_ms - 5, clock.now_ms] == times
