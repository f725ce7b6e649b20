"""Offsets that transactions stage: commit or drop them, fence them, and say which partitions have some."""

from __future__ import annotations

from korvet.protocol.errors import (
    ConcurrentTransactions,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from korvet.storage.interface import (
    GROUP,
    OffsetAndMetadata,
    ProducerTransaction,
    Storage,
    Topic,
    TopicPartition,
    TransactionResult,
)
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import append, numbered

ALICE, BOB = 2**52 + 1, 7  # producer ids
COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


async def stage(
    storage: Storage,
    tp: TopicPartition,
    offset: int,
    *,
    producer_id: int = ALICE,
    number: int = 1,
    producer_epoch: int = 0,
    generation_id: int = -1,
    coordinator_epoch: int = -1,
) -> KafkaError | None:
    results = await storage.stage(
        "billing",
        {tp: OffsetAndMetadata(offset, metadata="staged")},
        ProducerTransaction(producer_id, producer_epoch, number),
        generation_id=generation_id,
        coordinator_epoch=coordinator_epoch,
    )
    assert {tp} == results.keys()
    return results[tp]


async def settle(
    storage: Storage, result: TransactionResult, *, producer_id: int = ALICE, number: int = 1
) -> None:
    await storage.settle("billing", producer_id=producer_id, number=number, result=result)


async def offset_of(storage: Storage, tp: TopicPartition) -> int | None:
    """Return the committed offset of a partition, read alone and with all others."""
    found = (await storage.committed("billing", [tp])).get(tp)
    assert found == (await storage.committed("billing")).get(tp)
    return None if found is None else found.offset


class StagedOffsetContract(Contract):
    async def test_staged_offset_is_hidden_until_it_is_committed(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(5))
        assert await stage(storage, tp, 3) is None
        assert await offset_of(storage, tp) is None
        assert {tp} == set(await storage.unstable("billing"))
        assert {tp} == set(await storage.unstable("billing", [tp]))
        await settle(storage, COMMIT)

        assert {tp: OffsetAndMetadata(3, metadata="staged")} == await storage.committed("billing")
        assert await offset_of(storage, tp) == 3
        assert not await storage.unstable("billing")

    async def test_staged_offset_is_dropped_with_its_transaction(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(5))
        await storage.ack("billing", {tp: OffsetAndMetadata(1)})
        await stage(storage, tp, 3)
        await settle(storage, ABORT)

        assert await offset_of(storage, tp) == 1
        assert not await storage.unstable("billing")

    async def test_staged_offset_and_metadata_are_unchanged(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        offsets = [
            OffsetAndMetadata(0),
            OffsetAndMetadata(2**53 + 1, leader_epoch=7),
            OffsetAndMetadata(2**63 - 1, leader_epoch=2**31 - 1, metadata="größer 🔑 \0 : {} \n\"'"),
            OffsetAndMetadata(5, metadata="x" * 4096),
        ]
        for number, offset in enumerate(offsets, 1):
            await storage.stage("billing", {tp: offset}, ProducerTransaction(ALICE, 0, number))
            await settle(storage, COMMIT, number=number)

            assert {tp: offset} == await storage.committed("billing", [tp])

    async def test_last_staged_offset_of_a_partition_is_committed(
        self, storage: Storage, topic: Topic
    ) -> None:
        first, second = (TopicPartition(topic.name, number) for number in range(2))
        for tp, offset in ((first, 3), (second, 1), (first, 2)):
            await stage(storage, tp, offset)
        await settle(storage, COMMIT)

        assert (2, 1) == (await offset_of(storage, first), await offset_of(storage, second))

    async def test_plain_commit_supersedes_a_staged_offset(self, storage: Storage, topic: Topic) -> None:
        """KAFKA-5247: the later one wins, and the partition stays unstable until the transaction ends."""
        first, second = (TopicPartition(topic.name, number) for number in range(2))
        await stage(storage, first, 3)
        await stage(storage, second, 4)
        await storage.ack("billing", {first: OffsetAndMetadata(9)})
        assert {first, second} == set(await storage.unstable("billing"))
        await settle(storage, COMMIT)

        assert (9, 4) == (await offset_of(storage, first), await offset_of(storage, second))

    async def test_offset_that_is_staged_after_a_plain_commit_is_committed(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await stage(storage, tp, 3)
        await storage.ack("billing", {tp: OffsetAndMetadata(9)})
        await stage(storage, tp, 4)
        await settle(storage, COMMIT)

        assert await offset_of(storage, tp) == 4

    async def test_transactions_of_several_producers_end_independently(
        self, storage: Storage, topic: Topic
    ) -> None:
        first, second = (TopicPartition(topic.name, number) for number in range(2))
        await stage(storage, first, 3)
        await stage(storage, second, 4, producer_id=BOB, number=8)
        await settle(storage, COMMIT, producer_id=BOB, number=8)
        assert (None, 4) == (await offset_of(storage, first), await offset_of(storage, second))
        assert [first] == list(await storage.unstable("billing"))
        assert not await storage.unstable("billing", [second])
        await settle(storage, ABORT)

        assert await offset_of(storage, first) is None
        assert not await storage.unstable("billing")

    async def test_unknown_partition_does_not_fail_others(self, storage: Storage, tp: TopicPartition) -> None:
        nowhere = TopicPartition("nowhere", 0)
        results = await storage.stage(
            "billing",
            dict.fromkeys((nowhere, tp), OffsetAndMetadata(1)),
            ProducerTransaction(ALICE, 0, 1),
        )
        await settle(storage, COMMIT)

        assert isinstance(results[nowhere], UnknownTopicOrPartition)
        assert results[tp] is None
        assert await offset_of(storage, tp) == 1

    # --- Repetition and delay ---------------------------------------------------------------------------

    async def test_settling_again_changes_nothing(self, storage: Storage, tp: TopicPartition) -> None:
        await stage(storage, tp, 3)
        await settle(storage, COMMIT)
        await storage.ack("billing", {tp: OffsetAndMetadata(9)})
        await settle(storage, COMMIT)
        await settle(storage, ABORT)

        assert await offset_of(storage, tp) == 9

    async def test_offset_that_arrives_after_the_end_is_refused(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await settle(storage, COMMIT, number=2)
        for number in (1, 2):
            assert isinstance(await stage(storage, tp, 3, number=number), InvalidTxnState)

        assert not await storage.unstable("billing")
        assert await stage(storage, tp, 3, number=3) is None
        assert isinstance(await stage(storage, tp, 4, number=2), InvalidTxnState)

    async def test_end_of_an_earlier_transaction_leaves_the_present_one(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await stage(storage, tp, 3, number=2)
        await settle(storage, ABORT, number=1)
        assert {tp} == set(await storage.unstable("billing"))
        await settle(storage, COMMIT, number=2)

        assert await offset_of(storage, tp) == 3

    async def test_offset_of_the_next_transaction_waits_for_the_end(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await stage(storage, tp, 3)
        refused = await stage(storage, tp, 4, number=2)
        await settle(storage, COMMIT)

        assert isinstance(refused, ConcurrentTransactions)
        assert await offset_of(storage, tp) == 3
        assert await stage(storage, tp, 4, number=2) is None

    async def test_earlier_epoch_of_the_producer_is_refused(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await stage(storage, tp, 3, producer_epoch=1)

        assert isinstance(await stage(storage, tp, 4, producer_epoch=0), InvalidProducerEpoch)

    # --- Fences -----------------------------------------------------------------------------------------

    async def test_older_generation_and_coordinator_are_fenced(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(1)}, generation_id=3)
        epoch = await storage.fence(GROUP, "billing")

        assert isinstance(await stage(storage, tp, 3, generation_id=2), IllegalGeneration)
        assert isinstance(await stage(storage, tp, 3, coordinator_epoch=epoch - 1), NotCoordinator)
        assert not await storage.unstable("billing")
        assert await stage(storage, tp, 3, generation_id=4, coordinator_epoch=epoch) is None
        fenced = await storage.ack("billing", {tp: OffsetAndMetadata(2)}, generation_id=3)
        assert isinstance(fenced[tp], IllegalGeneration)

    # --- Deletion ---------------------------------------------------------------------------------------

    async def test_forgotten_offsets_are_not_committed_later(self, storage: Storage, topic: Topic) -> None:
        first, second = (TopicPartition(topic.name, number) for number in range(2))
        await stage(storage, first, 3)
        await stage(storage, second, 4)
        await storage.forget("billing", [first])
        assert [second] == list(await storage.unstable("billing"))
        await settle(storage, COMMIT)

        assert (None, 4) == (await offset_of(storage, first), await offset_of(storage, second))

    async def test_forgotten_group_has_no_staged_offsets(self, storage: Storage, tp: TopicPartition) -> None:
        await stage(storage, tp, 3)
        await storage.forget("billing")
        assert not await storage.unstable("billing")
        await settle(storage, COMMIT)

        assert await offset_of(storage, tp) is None

    async def test_offsets_of_a_deleted_topic_are_not_committed_in_the_next_of_that_name(
        self, storage: Storage, environment: Environment, topic: Topic, tp: TopicPartition
    ) -> None:
        await stage(storage, tp, 3)
        await storage.delete_topic(topic)
        await storage.create_topic(topic.name, topic.partitions, environment.settings)
        await settle(storage, COMMIT)

        assert await offset_of(storage, tp) is None

    async def test_staged_offsets_are_seen_by_another_broker(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        await stage(storage, tp, 3)
        async with environment.open() as other:
            assert {tp} == set(await other.unstable("billing"))
            await settle(other, COMMIT)

        assert await offset_of(storage, tp) == 3
