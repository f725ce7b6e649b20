"""Reading by offset, the bounds of the log, and what DeleteRecords and OffsetForLeaderEpoch need."""

from __future__ import annotations

import itertools

import pytest
import trio

from korvet.protocol.compression import Codec
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from korvet.storage.interface import (
    EpochEnd,
    IsolationLevel,
    LogOffsets,
    OffsetAndTimestamp,
    OffsetMapping,
    ReadRequest,
    ReadResult,
    Storage,
    Topic,
    TopicPartition,
)
from korvet.testing.contract.base import Contract
from korvet.testing.records import (
    T0,
    UNLIMITED,
    Record,
    append,
    append_batch,
    batch,
    batches_of,
    numbered,
    read,
    records_from,
    records_of,
    stored,
)


class ReadContract(Contract):
    # --- Where reading begins ---------------------------------------------------------------------------

    async def test_read_at_every_offset_returns_its_record(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        wanted = []
        for first in range(0, 40, 8):
            result = await append(storage, tp, numbered(8, first=first))
            wanted += stored(numbered(8, first=first), result.base_offset)
        for index, record in enumerate(wanted):
            found = await read(storage, tp, record.offset)
            first_batch = batches_of(found)[0]

            assert wanted[index:] == records_of(found, record.offset)
            assert first_batch.base_offset <= record.offset <= first_batch.last_offset

    async def test_read_between_batches_returns_the_next_one(
        self, storage: Storage, tp: TopicPartition, topic: Topic
    ) -> None:
        first = await append(storage, tp, numbered(2))
        if topic.config.mapping is OffsetMapping.TIMESTAMP:  # dense offsets have nothing in between
            assert stored(numbered(2), first.base_offset) == await records_from(storage, tp, 0)
        second = await append(storage, tp, numbered(2, first=2))

        assert stored(numbered(2, first=2), second.base_offset) == await records_from(
            storage, tp, first.base_offset + 2
        )

    async def test_read_at_the_log_end_returns_no_records(self, storage: Storage, tp: TopicPartition) -> None:
        start = (await storage.latest(tp)).log_start_offset
        result = await append(storage, tp, numbered(2))
        end = result.base_offset + 2
        found = await read(storage, tp, end)

        assert ReadResult(EncodedBatches(), LogOffsets(start, end, end)) == found

    async def test_read_result_is_cut_when_a_limit_ended_it(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        for number in range(6):
            await append(storage, tp, [Record(bytes(50_000), timestamp=T0 + number)])
        whole = await read(storage, tp, (await storage.latest(tp)).log_start_offset)
        for limit in (1, 60_000, 130_000, whole.size - 1):
            found = await read(storage, tp, whole.offsets.log_start_offset, max_bytes=limit)
            assert found.is_cut
            assert 0 < found.size < whole.size
        none = (await storage.read({tp: ReadRequest(whole.offsets.log_start_offset, 0)}, max_bytes=0))[tp]

        start, size = whole.offsets.log_start_offset, whole.size
        for limit in (2 * size, 10 * size):
            assert not (await read(storage, tp, start, max_bytes=limit)).is_cut
        assert not whole.is_cut
        assert isinstance(none, ReadResult)
        assert none.is_cut
        assert not (await read(storage, tp, whole.offsets.high_watermark)).is_cut

    async def test_read_of_an_empty_partition_returns_no_records(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        bounds = await storage.latest(tp)
        for offset in (0, bounds.high_watermark):
            found = await read(storage, tp, offset)

            assert EncodedBatches() == found.batches
            assert bounds == found.offsets

    async def test_consumer_waiting_at_offset_0_reads_the_first_record(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        before = records_of(await read(storage, tp, 0))
        result = await append(storage, tp, numbered(1))

        assert [] == before
        assert stored(numbered(1), result.base_offset) == await records_from(storage, tp, 0)

    async def test_offsets_outside_the_log_are_out_of_range(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        result = await append(storage, tp, numbered(4))
        await storage.truncate_before(tp, result.base_offset + 1)
        for offset in (-1, 0, result.base_offset, result.base_offset + 5, 2**62):
            with pytest.raises(OffsetOutOfRange):
                await read(storage, tp, offset)

    async def test_offsets_beyond_an_empty_partition_are_out_of_range(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        for offset in (-1, (await storage.latest(tp)).log_start_offset + 1, 2**62):
            with pytest.raises(OffsetOutOfRange):
                await read(storage, tp, offset)

    async def test_read_result_contains_the_log_offsets(self, storage: Storage, tp: TopicPartition) -> None:
        result = await append(storage, tp, numbered(4))
        await storage.truncate_before(tp, result.base_offset + 1)
        found = await read(storage, tp, result.base_offset + 2)
        end = result.base_offset + 4

        assert LogOffsets(result.base_offset + 1, end, end) == found.offsets
        assert found.offsets == await storage.latest(tp)
        assert found.size == len(found.batches.joined())

    async def test_both_isolation_levels_read_records_without_transactions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        result = await append(storage, tp, numbered(4))
        for level in IsolationLevel:
            results = await storage.read(
                {tp: ReadRequest(result.base_offset, UNLIMITED)}, max_bytes=UNLIMITED, isolation_level=level
            )
            found = results[tp]

            assert isinstance(found, ReadResult)
            assert stored(numbered(4), result.base_offset) == records_of(found)

    async def test_batches_of_every_size_are_described_by_their_headers(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        wanted = []
        for number, (count, size) in enumerate(
            itertools.product((1, 3, 400), (1, 100, 5_000, 20_000, 100_000))
        ):
            records = [
                Record(b"%d." % index * (size // 4 + 1)) for index in range(max(count * 100 // size, 1))
            ]
            codec = list(Codec)[number % len(Codec)]
            result = await append_batch(storage, tp, batch(records, codec=codec))
            wanted += stored(records, result.base_offset)
        found = await read(storage, tp, wanted[0].offset)
        headers = list(found.batches.headers())

        assert wanted == records_of(found)  # which also compares the headers with the batches
        assert len(wanted) == sum(header.records for header in headers)
        assert found.size == sum(header.size for header in headers)
        for largest in (0, 10_000, 1_000_000):
            copies = list(found.batches.batches(largest))
            assert [header.size for header in headers if header.size <= largest] == [*map(len, copies)]

    # --- Limits -----------------------------------------------------------------------------------------

    async def test_first_batch_may_exceed_max_bytes(self, storage: Storage, tp: TopicPartition) -> None:
        result = await append(storage, tp, [Record(b"x" * 1000), Record(b"y" * 1000)])
        for offset in (result.base_offset, result.base_offset + 1):
            for max_bytes in (1, 100, 1500):
                found = await read(storage, tp, offset, max_bytes=max_bytes)

                assert offset == records_of(found, offset)[0].offset

    async def test_reads_with_a_small_limit_reach_the_log_end(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        wanted = []
        for first in range(0, 60, 6):
            records = [Record(b"%d" % number * 50) for number in range(first, first + 6)]
            result = await append(storage, tp, records)
            wanted += stored(records, result.base_offset)

        assert wanted == await records_from(storage, tp, max_bytes=1)
        assert wanted == await records_from(storage, tp, max_bytes=500)

    async def test_read_fills_but_does_not_exceed_max_bytes(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        wanted = []
        for number in range(200):
            records = [Record(b"x" * (9_000 if number % 2 else 11_000), timestamp=T0 + number)]
            wanted += stored(records, (await append(storage, tp, records)).base_offset)
        limits = [25_000, 100_000, *range(240_000, 300_000, 6_000), 1_000_000]
        for index, max_bytes in itertools.product((0, 77), limits):
            offset = wanted[index].offset
            found = await read(storage, tp, offset, max_bytes=max_bytes)
            records_found = records_of(found, offset)

            assert max_bytes - 12_000 < found.size <= max_bytes
            assert wanted[index : index + len(records_found)] == records_found

    async def test_max_bytes_limits_all_partitions_together(self, storage: Storage, topic: Topic) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        starts = {}
        for tp in tps:
            starts[tp] = (await append(storage, tp, [Record(b"x" * 1000)])).base_offset
            for _ in range(9):
                await append(storage, tp, [Record(b"x" * 1000)])
        requests = {tp: ReadRequest(starts[tp], 100_000) for tp in tps}
        results = await storage.read(requests, max_bytes=15_500)
        sizes = [size_of(results[tp]) for tp in tps]

        assert sizes[0] > 10_000
        assert 0 < sizes[1] < 5_500
        assert 0 == sizes[2]
        assert tps == list(results)

    async def test_each_partition_has_its_own_limit(self, storage: Storage, topic: Topic) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        requests = {}
        for tp in tps:
            start = (await append(storage, tp, [Record(b"x" * 1000)])).base_offset
            await append(storage, tp, [Record(b"x" * 1000)])
            requests[tp] = ReadRequest(start, 1_500)
        results = await storage.read(requests, max_bytes=UNLIMITED)

        assert all(1_000 < size_of(results[tp]) <= 1_500 for tp in tps)

    async def test_only_the_first_partition_with_records_may_exceed_the_limits(
        self, storage: Storage, topic: Topic
    ) -> None:
        empty, first, second = (TopicPartition(topic.name, number) for number in range(3))
        starts = {
            tp: (await append(storage, tp, [Record(b"x" * 1000)])).base_offset for tp in (first, second)
        }
        results = await storage.read(
            {
                empty: ReadRequest(0, 10),
                first: ReadRequest(starts[first], 10),
                second: ReadRequest(starts[second], 10),
            },
            max_bytes=10,
        )

        assert [False, True, False] == [size_of(results[tp]) > 0 for tp in (empty, first, second)]

    async def test_failing_partition_does_not_fail_other_partitions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        result = await append(storage, tp, numbered(1))
        nowhere, beyond = TopicPartition("nowhere", 0), TopicPartition(tp.topic, 1)
        results = await storage.read(
            {
                nowhere: ReadRequest(0, 1000),
                beyond: ReadRequest(2**62, 1000),
                tp: ReadRequest(result.base_offset, 1000),
            },
            max_bytes=1000,
        )

        assert isinstance(results[nowhere], UnknownTopicOrPartition)
        assert isinstance(results[beyond], OffsetOutOfRange)
        assert size_of(results[tp]) > 0

    async def test_cancelled_readers_do_not_affect_other_readers(
        self, storage: Storage, topic: Topic
    ) -> None:
        wanted = {}
        for tp in (TopicPartition(topic.name, number) for number in range(3)):
            records = [Record(b"%d %d" % (tp.partition, n)) for n in range(50)]
            wanted[tp] = stored(records, (await append(storage, tp, records)).base_offset)
        found = []

        async def read_all(tp: TopicPartition, scope: trio.CancelScope) -> None:
            with scope:
                found.append(await records_from(storage, tp) == wanted[tp])

        scopes = [trio.CancelScope() for _ in range(60)]
        async with trio.open_nursery() as nursery:
            for number, scope in enumerate(scopes):
                nursery.start_soon(read_all, TopicPartition(topic.name, number % 3), scope)
            await trio.lowlevel.checkpoint()
            for scope in scopes[::2]:
                scope.cancel()

        assert len(found) >= 30
        assert all(found)

    # --- Bounds -----------------------------------------------------------------------------------------

    async def test_new_log_starts_and_ends_at_the_creation_of_its_topic(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        earliest = await storage.earliest(tp)
        start = earliest.offset

        assert OffsetAndTimestamp(start, -1) == earliest
        assert LogOffsets(start, start, start) == await storage.latest(tp)
        if topic.config.mapping is OffsetMapping.DENSE:
            assert 0 == start
        else:
            assert start > 0
            assert 0 == start % 2 ** int(topic.settings["offset.sequence.bits"])

    async def test_partitions_of_a_topic_start_at_the_same_offset(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        first = await storage.latest(tp)
        await append(storage, tp, numbered(1))
        altered = await storage.alter_topic(topic, partitions=topic.partitions + 1)
        others = [
            await storage.latest(TopicPartition(topic.name, number))
            for number in range(1, altered.partitions)
        ]

        assert [first] * topic.partitions == others

    async def test_earliest_is_the_log_start_with_the_timestamp_of_the_first_record(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        start = (await storage.latest(tp)).high_watermark
        records = [Record(b"a", timestamp=T0 + 5), Record(b"b", timestamp=T0)]
        result = await append(storage, tp, records)
        await append(storage, tp, numbered(2, timestamp=T0 - 7))

        assert result.base_offset >= start
        assert OffsetAndTimestamp(start, T0 + 5) == await storage.earliest(tp)
        assert start == (await storage.latest(tp)).log_start_offset

    async def test_earliest_of_records_without_a_timestamp(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        start = (await storage.latest(tp)).high_watermark
        await append(storage, tp, numbered(2, timestamp=-1))

        assert OffsetAndTimestamp(start, -1) == await storage.earliest(tp)

    async def test_read_below_the_log_start_is_out_of_range_after_a_truncation(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        first = (await append(storage, tp, numbered(3))).base_offset
        from_zero = await records_from(storage, tp, 0)
        await storage.truncate_before(tp, first + 1)

        assert stored(numbered(3), first) == from_zero
        for offset in (0, first):
            with pytest.raises(OffsetOutOfRange):
                await read(storage, tp, offset)

    async def test_offset_that_was_never_handed_out_is_out_of_range(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        """An offset that was copied from another cluster must not be read from the first record in silence."""
        topic = await storage.topic(tp.topic)
        assert topic is not None
        if topic.config.mapping is not OffsetMapping.TIMESTAMP:
            return
        start = (await storage.latest(tp)).log_start_offset
        first = (await append(storage, tp, numbered(3))).base_offset
        for offset in (1, 5000, start - 1):
            with pytest.raises(OffsetOutOfRange):
                await read(storage, tp, offset)

        assert stored(numbered(3), first) == await records_from(storage, tp, 0)
        assert stored(numbered(3), first) == await records_from(storage, tp, start)

    # --- Truncating -------------------------------------------------------------------------------------

    async def test_truncated_records_are_not_read(self, storage: Storage, tp: TopicPartition) -> None:
        wanted = []
        for first in range(0, 12, 4):
            result = await append(storage, tp, numbered(4, first=first))
            wanted += stored(numbered(4, first=first), result.base_offset)
        for index in (4, 6, 11):
            start = await storage.truncate_before(tp, wanted[index].offset)
            bounds = await storage.latest(tp)

            assert start == wanted[index].offset
            assert LogOffsets(start, wanted[-1].offset + 1, wanted[-1].offset + 1) == bounds
            assert wanted[index:] == await records_from(storage, tp)
            assert OffsetAndTimestamp(start, T0) == await storage.earliest(tp)

    async def test_truncation_inside_a_batch_is_seen_by_every_operation(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        records = [Record(b"%d" % n, timestamp=T0 + n * (-1) ** n) for n in range(10)]  # 0 -1 2 -3 4 -5 …
        base = (await append(storage, tp, records)).base_offset
        await storage.truncate_before(tp, base + 7)

        assert OffsetAndTimestamp(base + 7, T0 - 7) == await storage.earliest(tp)
        assert OffsetAndTimestamp(base + 7, T0 - 7) == await storage.seek_ts(tp, T0 - 100)
        assert OffsetAndTimestamp(base + 8, T0 + 8) == await storage.seek_ts(tp, T0 + 1)
        assert OffsetAndTimestamp(base + 8, T0 + 8) == await storage.seek_max_ts(tp)
        await storage.truncate_before(tp, base + 9)
        assert OffsetAndTimestamp(base + 9, T0 - 9) == await storage.seek_max_ts(tp)
        assert await storage.seek_ts(tp, T0 - 8) is None

    async def test_log_start_offset_does_not_decrease(self, storage: Storage, tp: TopicPartition) -> None:
        base = (await append(storage, tp, numbered(10))).base_offset
        await storage.truncate_before(tp, base + 5)
        starts = [await storage.truncate_before(tp, offset) for offset in (base + 3, 0, base + 5)]

        assert [base + 5] * 3 == starts
        assert base + 5 == (await storage.latest(tp)).log_start_offset

    async def test_truncated_empty_log_continues_at_its_end(
        self, storage: Storage, tp: TopicPartition, topic: Topic
    ) -> None:
        base = (await append(storage, tp, numbered(3))).base_offset
        start = await storage.truncate_before(tp, base + 3)
        earliest = await storage.earliest(tp)
        bounds = await storage.latest(tp)
        found = await read(storage, tp, base + 3)
        again = await append(storage, tp, numbered(3))

        assert start == base + 3
        assert OffsetAndTimestamp(base + 3, -1) == earliest
        assert LogOffsets(base + 3, base + 3, base + 3) == bounds
        assert EncodedBatches() == found.batches
        assert again.base_offset >= base + 3
        if topic.config.mapping is OffsetMapping.DENSE:
            assert base + 3 == again.base_offset
        assert stored(numbered(3), again.base_offset) == await records_from(storage, tp, base + 3)
        assert OffsetAndTimestamp(base + 3, T0) == await storage.earliest(tp)

    async def test_truncation_beyond_the_log_end_is_out_of_range(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        base = (await append(storage, tp, numbered(3))).base_offset
        with pytest.raises(OffsetOutOfRange):
            await storage.truncate_before(tp, base + 4)

        assert stored(numbered(3), base) == await records_from(storage, tp)

    async def test_empty_log_can_be_truncated_at_its_end(self, storage: Storage, tp: TopicPartition) -> None:
        with pytest.raises(OffsetOutOfRange):
            await storage.truncate_before(tp, (await storage.latest(tp)).high_watermark + 1)
        start = (await storage.latest(tp)).high_watermark

        assert [start, start] == [await storage.truncate_before(tp, offset) for offset in (0, start)]

    async def test_large_log_is_truncated_anywhere(self, storage: Storage, tp: TopicPartition) -> None:
        wanted = []
        for first in range(0, 400, 20):
            records = [Record(b"%d" % n * 300, timestamp=T0 + n) for n in range(first, first + 20)]
            wanted += stored(records, (await append(storage, tp, records)).base_offset)
        for index in (1, 37, 150, 151, 380, 399):
            await storage.truncate_before(tp, wanted[index].offset)

            assert wanted[index:] == await records_from(storage, tp)
            assert OffsetAndTimestamp(wanted[index].offset, T0 + index) == await storage.seek_ts(tp, T0)
            assert OffsetAndTimestamp(wanted[399].offset, T0 + 399) == await storage.seek_ts(tp, T0 + 399)

    # --- Leader epochs ----------------------------------------------------------------------------------

    async def test_current_epoch_ends_at_the_log_end(self, storage: Storage, tp: TopicPartition) -> None:
        start = (await storage.latest(tp)).high_watermark
        empty = await storage.epoch_end(tp, 0)
        result = await append(storage, tp, numbered(3))

        assert EpochEnd(0, start) == empty
        assert EpochEnd(0, result.base_offset + 3) == await storage.epoch_end(tp, 0)

    async def test_unknown_epoch_has_no_end(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(3))

        assert EpochEnd(-1, -1) == await storage.epoch_end(tp, 1)
        assert EpochEnd(-1, -1) == await storage.epoch_end(tp, -1)


def size_of(result: object) -> int:
    assert isinstance(result, ReadResult)
    return result.size
