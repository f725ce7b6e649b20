"""Compaction: which records remain, and that other operations continue unaffected."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import trio

from korvet.protocol.compression import Codec
from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.storage.interface import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Storage,
    StorageDefaults,
    TopicPartition,
)
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import (
    T0,
    Producer,
    Record,
    StoredRecord,
    append,
    append_batch,
    batch,
    batches_of,
    numbered,
    read,
    records_from,
)

YEAR_2100 = 4_102_444_800_000
AT_ONCE = {"min.cleanable.dirty.ratio": "0"}


class CompactionContract(Contract):
    """A store compacts on request, if the topic's settings require it."""

    @pytest.fixture
    async def compacting(self, storage: Storage, environment: Environment) -> TopicPartition:
        """Return a partition that every call compacts if it has new records."""
        return await topic_with(storage, environment, AT_ONCE)

    async def test_last_record_of_each_key_keeps_its_offset(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        for number in range(20):
            await append(storage, compacting, keyed(range(10), b"%d" % number))
        before = await records_from(storage, compacting)
        result = await storage.compact(compacting)
        after = await records_from(storage, compacting)

        assert before[-10:] == after
        assert result is not None
        assert before[-1].offset + 1 == result.end
        assert result.size_after < result.size_before / 5

    async def test_remaining_records_are_unchanged(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        records = [
            Record(b"1", b"a", T0 + 5, (("h", b"1"), ("h", None))),
            Record(b"", b"b", T0 - 3),
            Record(b"2", b"a", T0 + 1, (("", b""),)),
            Record(b"x" * 3000, b"", T0),
            Record(b"3", b"c" * 300, T0),
        ]
        await append(storage, compacting, records)
        await append(storage, compacting, [Record(b"4", b"c" * 300)])
        before = await records_from(storage, compacting)
        await storage.compact(compacting)

        assert [before[at] for at in (1, 2, 3, 5)] == await records_from(storage, compacting)

    async def test_compaction_does_not_change_the_log_bounds(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        for number in range(5):
            await append(storage, compacting, keyed(range(3), b"%d" % number))
        bounds = await storage.latest(compacting)
        await storage.compact(compacting)
        (first, *_) = await records_from(storage, compacting)

        assert first.offset > bounds.log_start_offset
        assert bounds == await storage.latest(compacting)
        assert OffsetAndTimestamp(bounds.log_start_offset, T0) == await storage.earliest(compacting)

    async def test_log_append_time_is_found_at_the_first_remaining_record(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, AT_ONCE | {"message.timestamp.type": "LogAppendTime"})
        await append(storage, tp, keyed([1, 1, 2, 1], b"a"))
        await append(storage, tp, keyed([3], b"b"))
        await storage.compact(tp)
        first = (await records_from(storage, tp))[0]

        found = await storage.seek_ts(tp, 0)
        assert found is not None
        assert (found.offset, found.timestamp) == (first.offset, first.timestamp)
        largest = await storage.seek_max_ts(tp)
        assert largest is not None
        assert largest.offset in [each.offset for each in await records_from(storage, tp)]

    async def test_read_at_a_removed_offset_returns_the_next_record(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        offsets = []
        for number in range(8):
            base = (
                await append(storage, compacting, keyed(range(number % 3 + 1), b"%d" % number))
            ).base_offset
            offsets += [base + delta for delta in range(number % 3 + 1)]
        await storage.compact(compacting)
        left = await records_from(storage, compacting)

        for offset in [0, *offsets]:
            expected = [each for each in left if each.offset >= offset]
            assert expected == await records_from(storage, compacting, offset)
            assert expected == await records_from(storage, compacting, offset, max_bytes=1)

    async def test_appends_continue_after_a_compaction(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        await append(storage, compacting, keyed([1, 2], b"old"))
        last = (await append(storage, compacting, keyed([1, 2], b"new"))).base_offset + 1
        await storage.compact(compacting)
        base = (await append(storage, compacting, keyed([1], b"newer"))).base_offset

        assert base > last
        assert [(b"1", b"new"), (b"2", b"new"), (b"1", b"newer")] == await content(storage, compacting)
        await storage.compact(compacting)
        assert [(b"2", b"new"), (b"1", b"newer")] == await content(storage, compacting)

    async def test_records_without_a_key_are_kept(self, storage: Storage, compacting: TopicPartition) -> None:
        await append(
            storage, compacting, [Record(b"1"), Record(b"2", b"a"), Record(b"3"), Record(b"4", b"a")]
        )
        await storage.compact(compacting)

        assert [(None, b"1"), (None, b"3"), (b"a", b"4")] == await content(storage, compacting)

    @pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
    async def test_batches_of_every_codec_are_compacted(
        self, storage: Storage, compacting: TopicPartition, codec: Codec
    ) -> None:
        await append_batch(storage, compacting, batch(keyed(range(50), b"old"), codec=codec))
        await append_batch(storage, compacting, batch(keyed(range(49), b"new"), codec=codec))
        await storage.compact(compacting)

        assert [(b"49", b"old"), *((b"%d" % key, b"new") for key in range(49))] == await content(
            storage, compacting
        )

    # --- Tombstones ---------------------------------------------------------------------------------------

    async def test_tombstone_removes_earlier_records_and_is_kept(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        await append(storage, compacting, [Record(b"1", b"a"), Record(b"1", b"b"), Record(None, b"a")])
        await append(storage, compacting, [Record(b"2", b"b")])
        await storage.compact(compacting)
        await append(storage, compacting, [Record(b"3", b"b")])
        await storage.compact(compacting)

        assert [(b"a", None), (b"b", b"3")] == await content(storage, compacting)

    async def test_tombstone_is_removed_after_delete_retention_ms(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {**AT_ONCE, "delete.retention.ms": "0"})
        await append(
            storage, tp, [Record(b"1", b"a"), Record(None, b"a"), Record(b"", b"c"), Record(b"1", b"b")]
        )
        await storage.compact(tp)
        met = await content(storage, tp)
        await append(storage, tp, [Record(b"2", b"b")])
        await storage.compact(tp)

        assert [(b"a", None), (b"c", b""), (b"b", b"1")] == met
        assert [(b"c", b""), (b"b", b"2")] == await content(storage, tp)

    async def test_newest_record_is_kept_even_if_it_is_a_tombstone(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {**AT_ONCE, "delete.retention.ms": "0"})
        for _ in range(3):
            await append(storage, tp, [Record(b"1", b"a"), Record(None, b"a")])
            await storage.compact(tp)

        assert [(b"a", None)] == await content(storage, tp)

    # --- When ---------------------------------------------------------------------------------------------

    async def test_topic_without_compact_policy_is_not_compacted(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {**AT_ONCE, "cleanup.policy": "delete"})
        await append(storage, tp, keyed([1, 1, 1], b"same"))

        assert await storage.compact(tp) is None
        assert 3 == len(await records_from(storage, tp))

    async def test_topic_can_be_altered_to_compact(self, storage: Storage, environment: Environment) -> None:
        tp = await topic_with(storage, environment, {"cleanup.policy": "delete"})
        await append(storage, tp, keyed([1, 1, 1], b"same"))
        topic = await storage.topic(tp.topic)
        assert topic is not None
        settings = {**topic.settings, **AT_ONCE, "cleanup.policy": "compact"}
        await storage.alter_topic(topic, settings=settings)
        await storage.compact(tp)

        assert 1 == len(await records_from(storage, tp))

    async def test_compact_returns_none_without_new_records(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        empty = await storage.compact(compacting)
        await append(storage, compacting, keyed([1, 1], b"same"))
        await storage.compact(compacting)

        assert empty is None
        assert await storage.compact(compacting) is None

    async def test_log_below_min_cleanable_dirty_ratio_is_not_compacted(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {"min.cleanable.dirty.ratio": "0.5"})
        await append(storage, tp, keyed(range(100), b"first" * 10))
        first = await storage.compact(tp)
        await append(storage, tp, keyed(range(30), b"second" * 10))
        second = await storage.compact(tp)
        await append(storage, tp, keyed(range(90), b"third" * 10))
        third = await storage.compact(tp)

        assert [True, True, True] == [first is not None, second is None, third is not None]
        assert 100 == len(await records_from(storage, tp))

    async def test_max_compaction_lag_ms_overrides_the_dirty_ratio(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {"min.cleanable.dirty.ratio": "1"})
        await append(storage, tp, keyed([1, 1], b"same"))
        before = await storage.compact(tp)
        topic = await storage.topic(tp.topic)
        assert topic is not None
        await storage.alter_topic(topic, settings={**topic.settings, "max.compaction.lag.ms": "1000"})
        after = await storage.compact(tp)

        assert before is None
        assert after is not None
        assert 1 == len(await records_from(storage, tp))

    async def test_records_from_the_first_younger_than_min_compaction_lag_ms_are_kept(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {**AT_ONCE, "min.compaction.lag.ms": "3600000"})
        await append(storage, tp, keyed([1, 2], b"1"))
        await append(storage, tp, keyed([1], b"2"))
        await append(storage, tp, keyed([2], b"3", timestamp=YEAR_2100))
        await append(storage, tp, keyed([1, 2], b"4"))
        result = await storage.compact(tp)
        found = await records_from(storage, tp)

        assert [b"1", b"2", b"3", b"4", b"4"] == [each.value for each in found]
        assert result is not None
        assert result.end == found[2].offset
        assert await storage.compact(tp) is None

    async def test_more_keys_than_max_keys_are_compacted_in_several_rounds(
        self, environment: Environment
    ) -> None:
        async with environment.open(StorageDefaults(compaction_max_keys=7)) as storage:
            tp = await topic_with(storage, environment, AT_ONCE)
            for number in range(6):
                await append(storage, tp, keyed(range(5), b"%d" % number))
                await append(storage, tp, keyed(range(number, number + 20), b"%d" % number))
            expected = latest_of(await records_from(storage, tp))
            await storage.compact(tp)

            assert expected == await records_from(storage, tp)

    async def test_unknown_topic_cannot_be_compacted(self, storage: Storage) -> None:
        with pytest.raises(UnknownTopicOrPartition):
            await storage.compact(TopicPartition("nothing", 0))

    # --- Other operations -----------------------------------------------------------------------------------

    async def test_duplicate_batch_is_recognised_after_its_records_were_removed(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        first = await append(storage, compacting, keyed([1], b"1"), producer=Producer(7))
        await append(storage, compacting, keyed([1], b"2"), producer=Producer(7, sequence=1))
        await storage.compact(compacting)
        again = await append(storage, compacting, keyed([1], b"1"), producer=Producer(7))
        third = await append(storage, compacting, keyed([1], b"3"), producer=Producer(7, sequence=2))

        assert [True, False] == [again.duplicate, third.duplicate]
        assert first.base_offset == again.base_offset
        assert [(b"1", b"2"), (b"1", b"3")] == await content(storage, compacting)

    async def test_seek_ts_finds_records_after_a_compaction(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        times = [T0 + 10, T0 + 40, T0 + 5, YEAR_2100, T0 + 30, T0 + 20, -1]
        for at, time in enumerate(times):
            await append(storage, compacting, keyed([at % 4, at], b"%d" % at, timestamp=time))
            await append(storage, compacting, [Record(b"x" * 70_000, b"large", T0 + at)])
        await storage.compact(compacting)
        left = await records_from(storage, compacting)

        for time in (-1, 0, *(T0 + each for each in range(45)), YEAR_2100, YEAR_2100 + 1):
            found = await storage.seek_ts(compacting, time)
            expected = next((each for each in left if each.timestamp >= time), None)
            assert (expected and expected.offset) == (found and found.offset)
        largest = max(left, key=lambda each: each.timestamp)
        found = await storage.seek_max_ts(compacting)
        assert found is not None
        assert (largest.offset, largest.timestamp) == (found.offset, found.timestamp)

    async def test_sizes_are_those_of_the_remaining_records(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        for number in range(50):
            await append(storage, compacting, keyed(range(20), b"%d" % number * 1000))
        before = (await storage.sizes([compacting]))[compacting]
        result = await storage.compact(compacting)
        after = (await storage.sizes([compacting]))[compacting]

        assert result is not None
        assert (before, after) == (result.size_before, result.size_after)
        assert isinstance(before, int)
        assert isinstance(after, int)
        assert before / 60 < after < before / 40

    async def test_compaction_keeps_committed_offsets(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        await append(storage, compacting, keyed([1, 2], b"1"))
        base = (await append(storage, compacting, keyed([1, 2], b"2"))).base_offset
        position = OffsetAndMetadata(base - 1, 0, "half way")
        await storage.ack("billing", {compacting: position})
        await storage.compact(compacting)

        assert {compacting: position} == await storage.committed("billing")

    async def test_compaction_does_not_restore_deleted_records(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        base = (await append(storage, compacting, keyed(range(10), b"1"))).base_offset
        await append(storage, compacting, keyed([8, 9], b"2"))
        await storage.truncate_before(compacting, base + 5)
        await storage.compact(compacting)

        expected = [*((b"%d" % key, b"1") for key in (5, 6, 7)), (b"8", b"2"), (b"9", b"2")]
        assert expected == await content(storage, compacting, base + 5)
        assert base + 5 == (await storage.latest(compacting)).log_start_offset

    async def test_retention_applies_under_compact_and_delete_policy(self, environment: Environment) -> None:
        async with environment.open(StorageDefaults(retention_check_interval_ms=0)) as storage:
            settings = {**AT_ONCE, "cleanup.policy": "compact,delete", "retention.bytes": "2000000"}
            tp = await topic_with(storage, environment, settings)
            for number in range(150):
                await append(
                    storage, tp, [Record(b"x" * 10_000, b"%d" % (key % 70)) for key in (number, 1000)]
                )
            await storage.compact(tp)
            compacted = (await storage.sizes([tp]))[tp]
            for number in range(400):
                await append(storage, tp, [Record(b"y" * 10_000, b"%d" % (number + 100))])
            kept = (await storage.sizes([tp]))[tp]

            assert isinstance(compacted, int)
            assert compacted < 1_000_000
            assert isinstance(kept, int)
            assert 2_000_000 <= kept <= 3_500_000
            assert (await storage.latest(tp)).log_start_offset > 0
            assert b"499" == (await records_from(storage, tp))[-1].key

    # --- Concurrent operations ------------------------------------------------------------------------------

    async def test_appends_and_reads_continue_during_compaction(
        self, storage: Storage, environment: Environment, compacting: TopicPartition
    ) -> None:
        tp = compacting
        for number in range(100):
            await append(storage, tp, keyed(range(20), b"%d" % number * 50))
        written = latest_of(await records_from(storage, tp))
        position = written[0].offset
        seen: list[StoredRecord] = []
        is_over = trio.Event()

        async def write(writer: Storage) -> None:
            number = 0
            while not is_over.is_set():
                await append(writer, tp, [Record(b"meanwhile", b"new %d" % number)])
                await trio.lowlevel.checkpoint()  # a store that never waits would not let the others work
                number += 1

        async def consume() -> None:
            nonlocal position
            while not is_over.is_set():
                for record in await records_from(storage, tp, position):
                    seen.append(record)
                    position = record.offset + 1
                await trio.lowlevel.checkpoint()

        async with environment.open() as other, trio.open_nursery() as nursery:
            nursery.start_soon(write, other)
            nursery.start_soon(consume)
            await storage.compact(tp)
            await append(storage, tp, [Record(b"last", b"last")])
            is_over.set()
        seen += await records_from(storage, tp, position)
        found = await records_from(storage, tp)

        assert written == found[:20]
        assert found == [each for each in seen if each in found]
        assert [each.offset for each in seen] == sorted({each.offset for each in seen})
        new = [int((each.key or b"").split()[1]) for each in seen if (each.key or b"").startswith(b"new")]
        assert list(range(len(new))) == new
        assert len(new) == len([each for each in found if each.value == b"meanwhile"])

    async def test_watchers_are_woken_after_a_compaction(
        self, storage: Storage, environment: Environment, compacting: TopicPartition
    ) -> None:
        await append(storage, compacting, keyed([1, 1], b"same"))
        async with environment.open() as other:
            with storage.watch([compacting]) as own, other.watch([compacting]) as watch:
                await other.latest(compacting)
                async with trio.open_nursery() as nursery:

                    async def wait() -> None:
                        await watch.wait()
                        while not (await read(other, compacting, end)).size:
                            await watch.wait()

                    end = (await storage.latest(compacting)).high_watermark
                    nursery.start_soon(wait)
                    await storage.compact(compacting)
                    with trio.fail_after(5):
                        await append(storage, compacting, numbered(1))
                        await own.wait()

    async def test_repeated_compaction_matches_a_dict(self, environment: Environment) -> None:
        chosen = random.Random(1)  # noqa: S311  the same in every run
        async with environment.open(StorageDefaults(compaction_max_keys=20)) as storage:
            tp = await topic_with(storage, environment, AT_ONCE)
            last: dict[bytes, StoredRecord] = {}
            for _ in range(12):
                for _ in range(chosen.randrange(8)):
                    records = [
                        Record(b"%d" % chosen.randrange(1000), b"%d" % chosen.randrange(40))
                        for _ in range(chosen.randrange(1, 12))
                    ]
                    base = (await append(storage, tp, records)).base_offset
                    for delta, record in enumerate(records):
                        key = record.key or b""
                        last[key] = StoredRecord(base + delta, record.value, key)
                await storage.compact(tp)

                assert sorted(last.values()) == await records_from(storage, tp)

    async def test_compacted_batches_are_not_empty_and_ordered(
        self, storage: Storage, compacting: TopicPartition
    ) -> None:
        for number in range(10):
            await append(storage, compacting, keyed(range(number % 4 + 1), b"%d" % number))
        await storage.compact(compacting)
        batches = batches_of(await read(storage, compacting, 0))

        assert all(each.record_count for each in batches)
        ends = [bound for each in batches for bound in (each.base_offset, each.last_offset)]
        assert ends == sorted(ends)


async def topic_with(
    storage: Storage, environment: Environment, settings: Mapping[str, str]
) -> TopicPartition:
    merged = {**environment.settings, "cleanup.policy": "compact", "retention.ms": "-1", **settings}
    await storage.create_topic("compacted", 1, merged)
    return TopicPartition("compacted", 0)


def keyed(keys: Sequence[int], value: bytes, *, timestamp: int = T0) -> list[Record]:
    """Return a record with that value for each key."""
    return [Record(value, b"%d" % key, timestamp) for key in keys]


async def content(
    storage: Storage, tp: TopicPartition, offset: int | None = None
) -> list[tuple[bytes | None, bytes | None]]:
    """Return the keys and values of all records."""
    return [(each.key, each.value) for each in await records_from(storage, tp, offset)]


def latest_of(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """Return the last record of each key, in order."""
    return sorted({each.key: each for each in records}.values())
