"""Appending: batches get the expected offsets, are returned unchanged, and are stored completely or not at all."""

from __future__ import annotations

import time

import pytest
import trio

from korvet.protocol.compression import Codec
from korvet.protocol.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, UnknownTopicOrPartition
from korvet.storage.interface import (
    AppendResult,
    OffsetMapping,
    PendingAppend,
    Storage,
    Topic,
    TopicPartition,
)
from korvet.storage.offsets import TimestampOffsets
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import (
    T0,
    Record,
    StoredRecord,
    append,
    append_batch,
    batch,
    batches_of,
    numbered,
    read,
    records_from,
    results_of,
    stored,
)

# Values, keys and headers that have revealed errors in some store.
PECULIAR = [
    Record(b"value", b"key"),
    Record(None, None),
    Record(b"", b""),
    Record(None, b"tombstone"),
    Record(b"\0\xff\r\n{}:$*", b"\0"),
    Record(b'{"json": true}', b"1-0"),
    Record(b"same name", headers=(("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4"))),
    Record(b"null and empty", headers=(("null", None), ("empty", b""), ("", b"no name"), ("", None))),
    Record(b"unicode", headers=(("schlüssel", "größe".encode()), ("🔑", b"\xf0\x9f"))),
    Record(
        b"names others use",
        headers=(("key", b"k"), ("value", b"v"), ("timestamp", b"t"), ("header.a", b"h"), ("$batch", b"b")),
    ),
    Record(b"many", headers=tuple((f"h{n}", b"%d" % n) for n in range(200))),
    Record(b"no time", timestamp=-1),
    Record(b"1970", timestamp=0),
    Record(b"2100", timestamp=4_102_444_800_000),
    Record(b"earlier", timestamp=T0 - 1_000_000_000),
    Record(b"x" * 20_000, b"k" * 2_000),
]


class AppendContract(Contract):
    # --- Offsets ----------------------------------------------------------------------------------------

    async def test_first_offset_is_that_of_the_mapping(
        self, storage: Storage, topic: Topic, tp: TopicPartition, environment: Environment
    ) -> None:
        before_ms = time_of(environment)
        result = await append(storage, tp, numbered(3))
        after_ms = time_of(environment)

        if topic.config.mapping is OffsetMapping.DENSE:
            assert 0 == result.base_offset
        else:
            bits = int(topic.settings["offset.sequence.bits"])
            assert before_ms <= result.base_offset >> bits <= after_ms

    async def test_offsets_continue_after_the_last_batch(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        results = [await append(storage, tp, numbered(count)) for count in (3, 1, 4, 1, 5)]
        bases = [result.base_offset for result in results]
        ends = [result.base_offset + count for result, count in zip(results, (3, 1, 4, 1, 5), strict=True)]

        if topic.config.mapping is OffsetMapping.DENSE:
            assert [0, 3, 4, 8, 9] == bases
        assert all(base >= end for base, end in zip(bases[1:], ends[:-1], strict=True))
        assert ends[-1] == (await storage.latest(tp)).high_watermark

    async def test_offsets_of_a_batch_are_consecutive(self, storage: Storage, tp: TopicPartition) -> None:
        base_offset = (await append(storage, tp, numbered(10_000))).base_offset
        offsets = [record.offset for record in await records_from(storage, tp)]

        assert list(range(base_offset, base_offset + 10_000)) == offsets

    @pytest.mark.parametrize("sequence_bits", [1, 10, 13, 16])
    async def test_large_batch_continues_into_the_following_milliseconds(
        self, storage: Storage, environment: Environment, sequence_bits: int
    ) -> None:
        settings = {
            **environment.settings,
            "offset.mapping": "timestamp",
            "offset.sequence.bits": str(sequence_bits),
        }
        await storage.create_topic("ticks", 1, settings)
        tp = TopicPartition("ticks", 0)
        before_ms = time_of(environment)
        first = await append(storage, tp, numbered(10_000))
        second = await append(storage, tp, numbered(10, first=10_000))
        found = await records_from(storage, tp)
        wanted = stored(numbered(10_000), first.base_offset)
        wanted += stored(numbered(10, first=10_000), second.base_offset)

        assert TimestampOffsets(sequence_bits).pair(first.base_offset)[0] >= before_ms
        assert second.base_offset >= first.base_offset + 10_000
        assert wanted == found

    async def test_partitions_have_independent_offsets(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(5))
        other = TopicPartition("orders", 1)
        result = await append(storage, other, numbered(2))

        assert stored(numbered(2), result.base_offset) == await records_from(storage, other)
        if topic.config.mapping is OffsetMapping.DENSE:
            assert 0 == result.base_offset

    async def test_result_contains_the_log_start_offset(self, storage: Storage, tp: TopicPartition) -> None:
        start = (await storage.latest(tp)).log_start_offset
        first = await append(storage, tp, numbered(3))
        await storage.truncate_before(tp, first.base_offset + 2)
        second = await append(storage, tp, numbered(3))

        assert first.log_start_offset == start
        assert first.base_offset + 2 == second.log_start_offset

    # --- Records ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("codec", list(Codec))
    async def test_records_are_read_unchanged(
        self, storage: Storage, tp: TopicPartition, codec: Codec
    ) -> None:
        result = await append_batch(storage, tp, batch(PECULIAR, codec=codec))

        assert stored(PECULIAR, result.base_offset) == await records_from(storage, tp)

    async def test_each_peculiar_record_is_read_from_its_own_batch(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        results = [await append(storage, tp, [record]) for record in PECULIAR]
        wanted = [
            StoredRecord(result.base_offset, *record)
            for result, record in zip(results, PECULIAR, strict=True)
        ]

        assert wanted == await records_from(storage, tp)

    async def test_batches_of_different_codecs_are_read_in_order(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        wanted = []
        for codec in Codec:
            records = numbered(10, first=100 * codec)
            result = await append_batch(storage, tp, batch(records, codec=codec))
            wanted += stored(records, result.base_offset)

        assert await records_from(storage, tp) == wanted

    async def test_record_of_900_kb_fits(self, storage: Storage, tp: TopicPartition) -> None:
        records = [Record(bytes(range(256)) * 3600, b"k")]
        result = await append(storage, tp, records)

        assert stored(records, result.base_offset) == await records_from(storage, tp)

    async def test_read_batches_have_base_offset_and_leader_epoch(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        result = await append(storage, tp, numbered(3))
        found = await read(storage, tp, result.base_offset)
        (stamped,) = batches_of(found)

        assert stamped.base_offset == result.base_offset
        assert stamped.partition_leader_epoch == found.offsets.leader_epoch == 0

    # --- Log append time --------------------------------------------------------------------------------

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
    async def test_log_append_time_replaces_record_timestamps(
        self, storage: Storage, environment: Environment, codec: Codec
    ) -> None:
        tp = await log_append_time_topic(storage, environment)
        result = await append_batch(storage, tp, batch(PECULIAR, codec=codec))
        wanted = [record._replace(timestamp=result.log_append_time_ms) for record in PECULIAR]
        found = await read(storage, tp, result.base_offset)

        assert abs(result.log_append_time_ms - time_of(environment)) < 60_000
        assert stored(wanted, result.base_offset) == await records_from(storage, tp)
        assert all(each.is_log_append_time for each in batches_of(found))

    async def test_each_batch_has_its_own_log_append_time(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await log_append_time_topic(storage, environment)
        wanted = []
        for first in range(0, 50, 5):
            result = await append(storage, tp, numbered(5, first=first))
            records = numbered(5, first=first, timestamp=result.log_append_time_ms)
            wanted += stored(records, result.base_offset)

        assert await records_from(storage, tp) == wanted

    async def test_result_under_create_time_has_no_log_append_time(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        result = await append(storage, tp, numbered(1))

        assert -1 == result.log_append_time_ms

    # --- Several partitions, several appends ------------------------------------------------------------

    async def test_one_append_writes_to_several_partitions(
        self, storage: Storage, environment: Environment
    ) -> None:
        await storage.create_topic("wide", 20, environment.settings)
        batches = {TopicPartition("wide", number): batch(numbered(3, first=number)) for number in range(20)}
        results = await storage.append(batches)
        found = {tp: await records_from(storage, tp) for tp in results}

        assert found == {
            tp: stored(numbered(3, first=tp.partition), result.base_offset)
            for tp, result in results.items()
            if isinstance(result, AppendResult)
        }
        assert 20 == len(found)

    async def test_unknown_partition_does_not_fail_other_partitions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        nowhere = TopicPartition("nowhere", 0)
        fourth = TopicPartition(tp.topic, 3)
        results = await storage.append(
            {nowhere: batch(numbered(1)), tp: batch(numbered(1)), fourth: batch(numbered(1))}
        )

        assert isinstance(results[nowhere], UnknownTopicOrPartition)
        assert isinstance(results[fourth], UnknownTopicOrPartition)
        assert isinstance(results[tp], AppendResult)
        assert 1 == len(await records_from(storage, tp))

    async def test_begun_append_returns_the_results_of_an_append(
        self, storage: Storage, topic: Topic
    ) -> None:
        batches = {TopicPartition(topic.name, number): batch(numbered(1)) for number in range(3)}
        nowhere = TopicPartition("nowhere", 0)
        appended = await results_of(await storage.begin_append(batches))
        failed = await results_of(await storage.begin_append({nowhere: batch(numbered(1))}))

        assert set(appended) == set(batches)
        assert all(isinstance(result, AppendResult) for result in appended.values())
        assert isinstance(failed[nowhere], UnknownTopicOrPartition)

    async def test_appends_keep_the_order_in_which_they_were_begun(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        begun = [
            await storage.begin_append({tp: batch(numbered(2, first=number))}) for number in range(0, 100, 2)
        ]
        results = [(await results_of(each))[tp] for each in reversed(begun)]

        assert all(isinstance(result, AppendResult) for result in results)
        assert [b"%d" % n for n in range(100)] == [record.value for record in await records_from(storage, tp)]

    async def test_abandoned_append_does_not_block_the_next(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        begun = [
            await storage.begin_append({tp: batch(numbered(2, first=number))}) for number in range(0, 10, 2)
        ]
        for each in begun:
            if isinstance(each, PendingAppend):
                each.abandon()
        await append(storage, tp, numbered(1, first=10))
        *pairs, last = [int(record.value or 0) for record in await records_from(storage, tp)]

        assert 10 == last
        assert [first + 1 for first in pairs[::2]] == pairs[1::2]

    async def test_batches_of_concurrent_writers_are_not_interleaved(
        self, storage: Storage, tp: TopicPartition, environment: Environment
    ) -> None:
        async def write(writer: Storage, name: bytes) -> None:
            for number in range(20):
                values = [Record(b"%d %d" % (number, each), name) for each in range(7)]
                await append(writer, tp, values)

        async with environment.open() as other, trio.open_nursery() as nursery:
            for name in (b"a", b"b", b"c"):
                nursery.start_soon(write, storage, name)
                nursery.start_soon(write, other, name.upper())
        found = await records_from(storage, tp)
        batches = [found[start : start + 7] for start in range(0, len(found), 7)]

        assert 6 * 20 * 7 == len(found)
        assert len({record.offset for record in found}) == len(found)
        for each in batches:
            assert 1 == len({(record.key, record.value.split()[0]) for record in each if record.value})
            assert list(range(7)) == [record.offset - each[0].offset for record in each]

    async def test_cancelled_append_is_atomic(self, storage: Storage, tp: TopicPartition) -> None:
        first = await append(storage, tp, numbered(2))
        with trio.CancelScope() as scope:
            scope.cancel()
            await append(storage, tp, numbered(1000, first=2))
        await append(storage, tp, numbered(2, first=1002))
        values = [int(record.value or b"") for record in await records_from(storage, tp, first.base_offset)]

        assert values in ([0, 1, 1002, 1003], list(range(1004)))

    # --- Acknowledgements -------------------------------------------------------------------------------

    @pytest.mark.parametrize("acks", [-1, 0, 1])
    async def test_every_acks_setting_appends(self, storage: Storage, tp: TopicPartition, acks: int) -> None:
        result = await append_batch(storage, tp, batch(numbered(1)), acks=acks)

        assert stored(numbered(1), result.base_offset) == await records_from(storage, tp)

    async def test_append_fails_without_enough_replicas(
        self, storage: Storage, environment: Environment
    ) -> None:
        settings = {**environment.settings, "min.insync.replicas": "2"}
        await storage.create_topic("safe", 1, settings)
        tp = TopicPartition("safe", 0)
        results = await storage.append({tp: batch(numbered(1))}, acks=-1, timeout_s=0.2)

        assert isinstance(results[tp], NotEnoughReplicas | NotEnoughReplicasAfterAppend)

    async def test_min_insync_replicas_applies_to_acks_all_only(
        self, storage: Storage, environment: Environment
    ) -> None:
        settings = {**environment.settings, "min.insync.replicas": "2"}
        await storage.create_topic("safe", 1, settings)
        results = [
            await append_batch(storage, TopicPartition("safe", 0), batch(numbered(1)), acks=acks)
            for acks in (0, 1)
        ]

        assert [False, False] == [result.duplicate for result in results]


def time_of(environment: Environment) -> int:
    """Return the store's time in milliseconds."""
    return environment.clock() if environment.clock else time.time_ns() // 1_000_000


async def log_append_time_topic(storage: Storage, environment: Environment) -> TopicPartition:
    settings = {**environment.settings, "message.timestamp.type": "LogAppendTime"}
    await storage.create_topic("clocked", 1, settings)
    return TopicPartition("clocked", 0)
