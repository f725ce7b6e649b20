"""Committed offsets: commit them, fence them by generations and coordinators, delete them."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import IllegalGeneration, NotCoordinator, UnknownTopicOrPartition
from korvet.storage.interface import GROUP, OffsetAndMetadata, Storage, Topic, TopicPartition
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import append, numbered


class GroupContract(Contract):
    async def test_committed_offset_is_read_back(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(5))
        committed = OffsetAndMetadata(3, leader_epoch=0, metadata="processed batch 123")
        results = await storage.ack("billing", {tp: committed})

        assert {tp: None} == results
        assert {tp: committed} == await storage.committed("billing", [tp])
        assert {tp: committed} == await storage.committed("billing")

    async def test_committed_offset_and_metadata_are_unchanged(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        offsets = [
            OffsetAndMetadata(0),
            OffsetAndMetadata(1, leader_epoch=7),
            OffsetAndMetadata(2**53 + 1, metadata=""),
            OffsetAndMetadata(2**63 - 1, leader_epoch=2**31 - 1, metadata="größer 🔑 \0 : {} \n"),
            OffsetAndMetadata(5, metadata="x" * 4096),
        ]
        for committed in offsets:
            await storage.ack("billing", {tp: committed})

            assert {tp: committed} == await storage.committed("billing", [tp])

    async def test_group_without_commits_has_no_committed_offsets(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        assert {} == await storage.committed("billing")
        assert {} == await storage.committed("billing", [tp])

    async def test_partitions_without_a_committed_offset_are_left_out(
        self, storage: Storage, topic: Topic
    ) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        await storage.ack("billing", {tps[1]: OffsetAndMetadata(4)})

        assert {tps[1]: OffsetAndMetadata(4)} == await storage.committed("billing", tps)
        assert {} == await storage.committed("billing", [tps[0]])

    async def test_commit_does_not_affect_other_partitions(self, storage: Storage, topic: Topic) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        await storage.ack("billing", {tp: OffsetAndMetadata(10 + tp.partition) for tp in tps})
        await storage.ack("billing", {tps[1]: OffsetAndMetadata(99)})
        offsets = {tp: committed.offset for tp, committed in (await storage.committed("billing")).items()}

        assert {tps[0]: 10, tps[1]: 99, tps[2]: 12} == offsets

    async def test_committed_offset_may_decrease(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(10))
        for offset in (7, 3, 0, 5):
            await storage.ack("billing", {tp: OffsetAndMetadata(offset)})

            assert {tp: OffsetAndMetadata(offset)} == await storage.committed("billing", [tp])

    async def test_groups_have_independent_committed_offsets(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        groups = ["billing", "Billing", "billing ", "", "a:b", "größe", "x" * 200]
        for offset, group in enumerate(groups):
            await storage.ack(group, {tp: OffsetAndMetadata(offset)})
        offsets = [(await storage.committed(group))[tp].offset for group in groups]

        assert list(range(len(groups))) == offsets

    async def test_commit_for_an_unknown_partition_does_not_fail_other_partitions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        nowhere, fourth = TopicPartition("nowhere", 0), TopicPartition(tp.topic, 3)
        results = await storage.ack("billing", dict.fromkeys((nowhere, tp, fourth), OffsetAndMetadata(1)))

        assert isinstance(results[nowhere], UnknownTopicOrPartition)
        assert isinstance(results[fourth], UnknownTopicOrPartition)
        assert results[tp] is None
        assert {tp: OffsetAndMetadata(1)} == await storage.committed("billing")

    async def test_committed_offsets_of_many_partitions(
        self, storage: Storage, environment: Environment
    ) -> None:
        await storage.create_topic("wide", 200, environment.settings)
        offsets = {TopicPartition("wide", number): OffsetAndMetadata(number) for number in range(200)}
        results = await storage.ack("billing", offsets)

        assert {None} == set(results.values())
        assert offsets == await storage.committed("billing")
        assert offsets == await storage.committed("billing", list(offsets))

    async def test_committed_offsets_are_seen_by_another_broker(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(3)})
        async with environment.open() as other:
            found = await other.committed("billing")
            await other.ack("billing", {tp: OffsetAndMetadata(4)})

        assert {tp: OffsetAndMetadata(3)} == found
        assert {tp: OffsetAndMetadata(4)} == await storage.committed("billing")

    async def test_committed_offset_has_a_commit_timestamp(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(3, commit_timestamp_ms=7)})
        first = (await storage.committed("billing"))[tp].commit_timestamp_ms
        if environment.clock is not None:
            environment.clock.now_ms += 1000
        await storage.ack("billing", {tp: OffsetAndMetadata(4)})
        second = (await storage.committed("billing", [tp]))[tp].commit_timestamp_ms

        assert 1_000_000_000_000 < first <= second
        assert environment.clock is None or second == first + 1000

    # --- Generations ------------------------------------------------------------------------------------

    async def test_older_generation_is_fenced(self, storage: Storage, tp: TopicPartition) -> None:
        for generation_id in (1, 2, 2, 5):
            await storage.ack("billing", {tp: OffsetAndMetadata(generation_id)}, generation_id=generation_id)
        results = await storage.ack("billing", {tp: OffsetAndMetadata(99)}, generation_id=4)

        assert isinstance(results[tp], IllegalGeneration)
        assert {tp: OffsetAndMetadata(5)} == await storage.committed("billing")

    async def test_generation_fence_applies_to_all_partitions(self, storage: Storage, topic: Topic) -> None:
        first, second = (TopicPartition(topic.name, number) for number in range(2))
        await storage.ack("billing", {first: OffsetAndMetadata(1)}, generation_id=2)
        results = await storage.ack(
            "billing", dict.fromkeys((first, second), OffsetAndMetadata(9)), generation_id=1
        )

        assert [IllegalGeneration] * 2 == [type(results[tp]) for tp in (first, second)]
        assert {first: OffsetAndMetadata(1)} == await storage.committed("billing")

    async def test_commit_without_a_generation_is_not_fenced(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(1)}, generation_id=7)
        results = await storage.ack("billing", {tp: OffsetAndMetadata(2)})
        fenced = await storage.ack("billing", {tp: OffsetAndMetadata(3)}, generation_id=6)

        assert {tp: None} == results
        assert isinstance(fenced[tp], IllegalGeneration)
        assert {tp: OffsetAndMetadata(2)} == await storage.committed("billing")

    async def test_groups_are_fenced_independently(self, storage: Storage, tp: TopicPartition) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(1)}, generation_id=7)
        results = await storage.ack("shipping", {tp: OffsetAndMetadata(2)}, generation_id=1)

        assert {tp: None} == results

    async def test_generation_committed_by_another_broker_fences(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        async with environment.open() as other:
            await other.ack("billing", {tp: OffsetAndMetadata(1)}, generation_id=3)
        results = await storage.ack("billing", {tp: OffsetAndMetadata(2)}, generation_id=2)

        assert isinstance(results[tp], IllegalGeneration)

    # --- Coordinators -----------------------------------------------------------------------------------

    async def test_commit_of_an_earlier_coordinator_is_fenced(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        assert {tp: None} == await storage.ack("billing", {tp: OffsetAndMetadata(1)}, coordinator_epoch=0)
        async with environment.open() as other:
            first, second = await other.fence(GROUP, "billing"), await storage.fence(GROUP, "billing")
        results = await storage.ack(
            "billing", {tp: OffsetAndMetadata(9)}, generation_id=8, coordinator_epoch=first
        )

        assert 0 < first < second
        assert isinstance(results[tp], NotCoordinator)
        assert {tp: OffsetAndMetadata(1)} == await storage.committed("billing")
        for allowed in (second, -1):
            assert {tp: None} == await storage.ack(
                "billing", {tp: OffsetAndMetadata(2)}, generation_id=7, coordinator_epoch=allowed
            )

    async def test_coordinators_of_groups_are_fenced_independently(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.fence(GROUP, "billing")

        assert {} == await storage.committed("billing")
        assert {tp: None} == await storage.ack("shipping", {tp: OffsetAndMetadata(2)}, coordinator_epoch=0)

    async def test_forgotten_group_begins_with_its_first_coordinator(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.fence(GROUP, "billing")
        await storage.forget("billing")

        assert {tp: None} == await storage.ack("billing", {tp: OffsetAndMetadata(2)}, coordinator_epoch=0)

    # --- Forgetting -------------------------------------------------------------------------------------

    async def test_forget_removes_committed_offsets_of_given_partitions(
        self, storage: Storage, topic: Topic
    ) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        await storage.ack("billing", dict.fromkeys(tps, OffsetAndMetadata(4)))
        await storage.forget("billing", tps[:2])

        assert {tps[2]: OffsetAndMetadata(4)} == await storage.committed("billing")
        assert {tps[2]: OffsetAndMetadata(4)} == await storage.committed("billing", tps)

    async def test_forget_removes_all_committed_offsets(self, storage: Storage, tp: TopicPartition) -> None:
        await append(storage, tp, numbered(5))
        await storage.ack("billing", {tp: OffsetAndMetadata(4)})
        await storage.forget("billing")

        assert {} == await storage.committed("billing")
        assert {} == await storage.committed("billing", [tp])

    async def test_forgotten_group_accepts_its_first_generation(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(4)}, generation_id=9)
        await storage.forget("billing")
        results = await storage.ack("billing", {tp: OffsetAndMetadata(1)}, generation_id=1)

        assert results == {tp: None}

    async def test_forgetting_some_partitions_keeps_the_generation_fence(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.ack("billing", {tp: OffsetAndMetadata(4)}, generation_id=9)
        await storage.forget("billing", [tp])
        results = await storage.ack("billing", {tp: OffsetAndMetadata(1)}, generation_id=8)

        assert isinstance(results[tp], IllegalGeneration)

    async def test_forget_ignores_missing_groups_and_partitions(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        await storage.forget("billing")
        await storage.forget("billing", [tp, TopicPartition("nowhere", 0)])

        assert {} == await storage.committed("billing")

    @pytest.mark.parametrize("generation_id", [-1, 3])
    async def test_forgotten_group_can_commit_again(
        self, storage: Storage, tp: TopicPartition, generation_id: int
    ) -> None:
        for offset in range(3):
            await storage.ack("billing", {tp: OffsetAndMetadata(offset)}, generation_id=generation_id)
            found = await storage.committed("billing", [tp])
            await storage.forget("billing")

            assert {tp: OffsetAndMetadata(offset)} == found
