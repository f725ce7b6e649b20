"""Idempotent producers: a batch that is sent twice is stored once (rules: `korvet.storage.producer_state`)."""

from __future__ import annotations

import time

import pytest
import trio

from korvet.protocol.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from korvet.storage.interface import AppendResult, Storage, StorageDefaults, Topic, TopicPartition
from korvet.storage.producer_state import producer_id_at
from korvet.testing.contract.appending import log_append_time_topic
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import (
    Producer,
    append,
    batch,
    batches_of,
    numbered,
    read,
    records_from,
    results_of,
)

LAST_SEQUENCE = 2**31 - 1
# An id that a store assigns long after the tests, so that it cannot have expired. Ids like 7 are older than any store.
YOUNG = 2**52


class ProducerContract(Contract):
    # --- Duplicates -------------------------------------------------------------------------------------

    async def test_duplicate_batch_returns_the_first_result(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        first = await append(storage, tp, numbered(3), producer=Producer(7))
        again = await append(storage, tp, numbered(3), producer=Producer(7))

        assert AppendResult(first.base_offset, -1, first.log_start_offset, duplicate=True) == again
        assert 3 == len(await records_from(storage, tp))

    async def test_producer_epoch_of_minus_one_is_accepted(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        first = await append(storage, tp, numbered(1), producer=Producer(7, epoch=-1))
        again = await append(storage, tp, numbered(1), producer=Producer(7, epoch=-1))
        for producer_id in range(8, 12):
            await append(storage, tp, numbered(1), producer=Producer(producer_id))

        assert AppendResult(first.base_offset, -1, first.log_start_offset, duplicate=True) == again
        assert 5 == len(await records_from(storage, tp))

    async def test_last_five_batches_are_recognised(self, storage: Storage, tp: TopicPartition) -> None:
        results = [
            await append(storage, tp, numbered(2), producer=Producer(7, sequence=2 * n)) for n in range(7)
        ]
        again = [
            await append(storage, tp, numbered(2), producer=Producer(7, sequence=2 * n))
            for n in (6, 2, 4, 3, 5, 2)
        ]

        assert [result.base_offset for result in again] == [
            results[n].base_offset for n in (6, 2, 4, 3, 5, 2)
        ]
        assert all(result.duplicate for result in again)
        assert 14 == len(await records_from(storage, tp))

    async def test_older_batches_are_out_of_order(self, storage: Storage, tp: TopicPartition) -> None:
        for n in range(6):
            await append(storage, tp, numbered(2), producer=Producer(7, sequence=2 * n))

        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(2), producer=Producer(7))

    async def test_batch_with_another_record_count_is_not_a_duplicate(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(4), producer=Producer(7))
        for sequence, count in ((0, 3), (0, 5), (1, 3), (3, 1)):
            with pytest.raises(OutOfOrderSequenceNumber):
                await append(storage, tp, numbered(count), producer=Producer(7, sequence=sequence))

        assert 4 == len(await records_from(storage, tp))

    async def test_duplicate_is_recognised_after_its_records_were_deleted(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        first = await append(storage, tp, numbered(3), producer=Producer(7))
        await storage.truncate_before(tp, first.base_offset + 3)
        again = await append(storage, tp, numbered(3), producer=Producer(7))

        assert AppendResult(first.base_offset, -1, first.base_offset + 3, duplicate=True) == again
        assert [] == await records_from(storage, tp)

    async def test_duplicate_under_log_append_time_has_the_first_append_time(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await log_append_time_topic(storage, environment)
        first = await append(storage, tp, numbered(3), producer=Producer(7))
        await append(storage, tp, numbered(3), producer=Producer(7, sequence=3))
        if environment.clock:
            environment.clock.now_ms += 60_000
        again = await append(storage, tp, numbered(3), producer=Producer(7))

        assert first.log_append_time_ms == again.log_append_time_ms

    async def test_duplicate_in_one_partition_does_not_affect_other_partitions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        other = TopicPartition(tp.topic, 1)
        await append(storage, tp, numbered(1), producer=Producer(7))
        results = await storage.append(
            {
                tp: batch(numbered(1), producer=Producer(7)),
                other: batch(numbered(1), producer=Producer(7)),
            }
        )

        assert [True, False] == [getattr(results[each], "duplicate", None) for each in (tp, other)]

    async def test_duplicate_is_recognised_by_another_broker(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        first = await append(storage, tp, numbered(3), producer=Producer(7))
        async with environment.open() as other:
            again = await append(other, tp, numbered(3), producer=Producer(7))
            await append(other, tp, numbered(3), producer=Producer(7, sequence=3))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(7, sequence=9))

        assert again.duplicate
        assert first.base_offset == again.base_offset
        assert 6 == len(await records_from(storage, tp))

    # --- Sequences --------------------------------------------------------------------------------------

    async def test_sequence_gap_is_refused_without_a_write(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(7, sequence=4))
        latest = await storage.latest(tp)
        await append(storage, tp, numbered(3), producer=Producer(7, sequence=3))

        assert 6 == len(await records_from(storage, tp))
        assert latest.high_watermark == (await records_from(storage, tp))[2].offset + 1

    async def test_refused_batch_does_not_fail_other_partitions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        other = TopicPartition(tp.topic, 1)
        await append(storage, tp, numbered(1), producer=Producer(7))
        results = await storage.append(
            {
                tp: batch(numbered(1), producer=Producer(7, sequence=5)),
                other: batch(numbered(1), producer=Producer(7, sequence=5)),
            }
        )

        assert isinstance(results[tp], OutOfOrderSequenceNumber)
        assert isinstance(results[other], AppendResult)

    async def test_unknown_producer_must_start_at_sequence_0(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(YOUNG, sequence=3))
        result = await append(storage, tp, numbered(3), producer=Producer(YOUNG))
        await append(storage, tp, numbered(3), producer=Producer(YOUNG, sequence=3))

        assert not result.duplicate
        assert 6 == len(await records_from(storage, tp))

    async def test_producer_older_than_the_topic_may_start_at_any_sequence(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=4, sequence=1234))
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=4, sequence=1237))

        assert 6 == len(await records_from(storage, tp))

    async def test_sequences_wrap_around_after_2_31(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7, sequence=LAST_SEQUENCE - 2))
        result = await append(storage, tp, numbered(3), producer=Producer(7, sequence=0))
        again = await append(storage, tp, numbered(3), producer=Producer(7, sequence=0))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(7, sequence=4))

        assert again.base_offset == result.base_offset
        assert again.duplicate

    async def test_sequences_wrap_around_within_a_batch(self, storage: Storage, tp: TopicPartition) -> None:
        result = await append(storage, tp, numbered(5), producer=Producer(7, sequence=LAST_SEQUENCE - 1))
        again = await append(storage, tp, numbered(5), producer=Producer(7, sequence=LAST_SEQUENCE - 1))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(1), producer=Producer(7, sequence=4))
        await append(storage, tp, numbered(1), producer=Producer(7, sequence=3))

        assert AppendResult(result.base_offset, -1, result.log_start_offset, duplicate=True) == again
        assert 6 == len(await records_from(storage, tp))

    async def test_last_sequence_is_followed_by_0(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(1), producer=Producer(7, sequence=LAST_SEQUENCE))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(1), producer=Producer(7, sequence=1))
        await append(storage, tp, numbered(1), producer=Producer(7, sequence=0))

        assert 2 == len(await records_from(storage, tp))

    async def test_five_batches_in_flight_arrive_in_order(self, storage: Storage, tp: TopicPartition) -> None:
        for start in range(0, 75, 15):
            begun = [
                await storage.begin_append(
                    {tp: batch(numbered(3, first=sequence), producer=Producer(7, sequence=sequence))}
                )
                for sequence in range(start, start + 15, 3)
            ]
            results = [(await results_of(each))[tp] for each in begun]
            assert all(isinstance(result, AppendResult) for result in results)

        assert [b"%d" % n for n in range(75)] == [record.value for record in await records_from(storage, tp)]

    # --- Epochs -----------------------------------------------------------------------------------------

    async def test_older_epoch_is_fenced(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=1))
        with pytest.raises(InvalidProducerEpoch):
            await append(storage, tp, numbered(3), producer=Producer(7, epoch=0, sequence=3))

        assert 3 == len(await records_from(storage, tp))

    async def test_duplicate_of_an_older_epoch_is_fenced(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=0))
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=1))

        with pytest.raises(InvalidProducerEpoch):
            await append(storage, tp, numbered(3), producer=Producer(7, epoch=0))

    async def test_newer_epoch_must_start_at_sequence_0(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=1, sequence=10))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(7, epoch=2, sequence=13))
        result = await append(storage, tp, numbered(3), producer=Producer(7, epoch=2))
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=2, sequence=3))

        assert not result.duplicate
        assert 9 == len(await records_from(storage, tp))

    async def test_refused_epoch_is_not_stored(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7, epoch=1))
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(7, epoch=2, sequence=3))
        result = await append(storage, tp, numbered(3), producer=Producer(7, epoch=1, sequence=3))

        assert not result.duplicate

    async def test_largest_producer_ids_and_epochs_are_exact(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        near = 2**63 - 2, 2**63 - 1  # equal, once they are doubles
        results = [
            await append(storage, tp, numbered(2), producer=Producer(producer_id, 2**15 - 1))
            for producer_id in (*near, *near)
        ]

        assert [False, False, True, True] == [result.duplicate for result in results]
        assert results[2].base_offset == results[0].base_offset
        assert results[3].base_offset == results[1].base_offset

    # --- Many, and none ---------------------------------------------------------------------------------

    async def test_producers_have_independent_sequences(self, storage: Storage, tp: TopicPartition) -> None:
        for producer_id in range(50):
            await append(storage, tp, numbered(1), producer=Producer(producer_id, sequence=producer_id))
        results = [
            await append(storage, tp, numbered(1), producer=Producer(producer_id, sequence=producer_id + 1))
            for producer_id in range(50)
        ]

        assert not any(result.duplicate for result in results)
        assert 100 == len(await records_from(storage, tp))

    async def test_batches_without_a_producer_do_not_affect_sequences(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(2), producer=Producer(7))
        results = [await append(storage, tp, numbered(2)) for _ in range(2)]
        after = await append(storage, tp, numbered(2), producer=Producer(7, sequence=2))

        assert not any(result.duplicate for result in (*results, after))

    async def test_read_batches_contain_their_producer(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(2), producer=Producer(7, epoch=3))
        await append(storage, tp, numbered(2))
        await append(storage, tp, numbered(2), producer=Producer(8, epoch=4))
        found = await read(storage, tp, 0)
        producers = {each.base_offset: (each.producer_id, each.producer_epoch) for each in batches_of(found)}

        assert [(7, 3), (-1, -1), (8, 4)] == list(producers.values())

    async def test_producer_of_a_deleted_topic_may_continue_in_the_recreated_one(
        self, storage: Storage, environment: Environment, topic: Topic
    ) -> None:
        def now_ms() -> int:
            return environment.clock.now_ms if environment.clock else time.time_ns() // 1_000_000

        tp = TopicPartition(topic.name, 0)
        producer_id = producer_id_at(now_ms())
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(storage, tp, numbered(3), producer=Producer(producer_id, sequence=3))
        while producer_id_at(now_ms()) == producer_id:
            if environment.clock:
                environment.clock.now_ms += 1
            await trio.sleep(0.001)
        await storage.delete_topic(topic)
        await storage.create_topic(topic.name, 1, environment.settings)
        result = await append(storage, tp, numbered(3), producer=Producer(producer_id, sequence=3))

        assert not result.duplicate

    async def test_producers_expire(self, environment: Environment) -> None:
        async with environment.open(StorageDefaults(producer_id_expiration_ms=0)) as storage:
            await storage.create_topic("orders", 1, environment.settings)
            tp = TopicPartition("orders", 0)
            await append(storage, tp, numbered(2), producer=Producer(7, epoch=1))
            results = [
                await append(storage, tp, numbered(2), producer=Producer(7, epoch=1)),
                await append(storage, tp, numbered(2), producer=Producer(7, epoch=1, sequence=100)),
                await append(storage, tp, numbered(2), producer=Producer(7, epoch=0, sequence=5)),
            ]

        assert not any(result.duplicate for result in results)

    async def test_partitions_have_independent_producers(self, storage: Storage, topic: Topic) -> None:
        results = [
            await append(storage, TopicPartition(topic.name, number), numbered(1), producer=Producer(7))
            for number in range(3)
        ]

        assert not any(result.duplicate for result in results)
