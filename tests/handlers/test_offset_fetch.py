from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from korvet.storage.interface import OffsetAndMetadata, ProducerTransaction, TopicPartition, TransactionResult
from tests.handlers.support import T0, Shim, ask, away, create, install

T1 = TopicPartition("t", 1)
Told = dict[str, list[tuple[int, int, int, str | None]]]


async def fetch(
    broker: Broker, topics: dict[str, list[int]] | None, *, version: int, groups: tuple[str, ...] = ("g",)
) -> OffsetFetchResponse:
    if version >= 8:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group_id,
                    topics=None
                    if topics is None
                    else [
                        OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                        for name, numbers in topics.items()
                    ],
                )
                for group_id in groups
            ],
            require_stable=True,
        )
    else:
        request = OffsetFetchRequest(
            require_stable=version == 7,
            group_id=groups[0],
            topics=None
            if topics is None
            else [
                OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
                for name, numbers in topics.items()
            ],
        )
    response = await ask(broker, 9, version, request)
    assert isinstance(response, OffsetFetchResponse)
    return response


async def committed_offsets(broker: Broker, topics: dict[str, list[int]] | None, *, version: int) -> Told:
    """Return partition, offset, epoch and metadata of the group's committed offsets, by topic."""
    response = await fetch(broker, topics, version=version)
    found = response.groups[0].topics if version >= 8 else response.topics
    assert ErrorCode.NONE == response.error_code
    return {
        topic.name: [
            (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.metadata)
            for each in topic.partitions
            if each.error_code == ErrorCode.NONE
        ]
        for topic in found
    }


@pytest.fixture
async def committed(broker: Broker) -> Broker:
    await create(broker, partitions=3)
    await broker._storage.ack("g", {T0: OffsetAndMetadata(5, 0, "done"), T1: OffsetAndMetadata(7)})
    return broker


@pytest.mark.parametrize("version", range(1, 10))
async def test_committed_offsets_are_returned(committed: Broker, version: int) -> None:
    assert {"t": [(1, 7, -1, ""), (0, 5, 0, "done"), (2, -1, -1, "")], "none": [(0, -1, -1, "")]} == (
        await committed_offsets(committed, {"t": [1, 0, 2], "none": [0]}, version=version)
    )


@pytest.mark.parametrize("version", range(2, 10))
async def test_null_requests_all_committed_offsets(committed: Broker, version: int) -> None:
    assert {"t": [(0, 5, 0, "done"), (1, 7, -1, "")]} == await committed_offsets(
        committed, None, version=version
    )


@pytest.mark.parametrize("version", [2, 7, 8, 9])
async def test_empty_list_requests_no_offsets(committed: Broker, version: int) -> None:
    assert {} == await committed_offsets(committed, {}, version=version)


@pytest.mark.parametrize("version", [7, 9])
async def test_unknown_group_has_no_committed_offsets(broker: Broker, version: int) -> None:
    assert {"t": [(0, -1, -1, "")]} == await committed_offsets(broker, {"t": [0]}, version=version)


@pytest.mark.parametrize("version", [1, 7, 9])
async def test_duplicate_partitions_are_answered_each_time(committed: Broker, version: int) -> None:
    assert {"t": [(0, 5, 0, "done"), (0, 5, 0, "done")], "none": []} == (
        await committed_offsets(committed, {"t": [0, 0], "none": []}, version=version)
    )


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_offset_that_a_transaction_may_replace_is_unstable(committed: Broker, version: int) -> None:
    await committed.groups.stage("g", {T0: OffsetAndMetadata(6)}, ProducerTransaction(7, 0, 1))
    await committed.groups.stage("h", {T1: OffsetAndMetadata(6)}, ProducerTransaction(7, 0, 1))

    async def answered(topics: dict[str, list[int]] | None) -> list[tuple[int, int, int]]:
        response = await fetch(committed, topics, version=version)
        found = response.groups[0].topics if version >= 8 else response.topics
        partitions = [partition for topic in found for partition in topic.partitions]
        return [(each.partition_index, each.committed_offset, each.error_code) for each in partitions]

    wanted = [(0, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT), (1, 7, ErrorCode.NONE)]
    assert wanted == await answered({"t": [0, 1]})
    assert wanted == await answered(None)
    assert {T0: 5} == {tp: each.offset for tp, each in (await committed.groups.committed("g", [T0])).items()}

    await committed._storage.settle("g", producer_id=7, number=1, result=TransactionResult.COMMIT)
    assert [(0, 6, ErrorCode.NONE), (1, 7, ErrorCode.NONE)] == await answered(None)


async def test_several_groups_are_answered(committed: Broker) -> None:
    response = await fetch(committed, {"t": [0]}, version=8, groups=("g", "", "other"))

    assert [("g", 5), ("", -1), ("other", -1)] == [
        (group.group_id, group.topics[0].partitions[0].committed_offset) for group in response.groups
    ]


async def test_unreachable_storage_is_an_error_of_the_group(committed: Broker) -> None:
    install(committed, Shim(committed._storage, committed=away))

    in_partitions = await fetch(committed, {"t": [0]}, version=1)
    in_the_answer = await fetch(committed, {"t": [0]}, version=7)
    in_the_group = await fetch(committed, {"t": [0]}, version=8)

    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    (partition,) = in_partitions.topics[0].partitions
    assert (error, -1) == (partition.error_code, partition.committed_offset)
    assert (error, []) == (in_the_answer.error_code, in_the_answer.topics)
    assert [(error, [])] == [(group.error_code, group.topics) for group in in_the_group.groups]


async def test_committed_offsets_are_fetched_by_id(committed: Broker) -> None:
    topic, unknown = await committed.find_topic("t"), uuid4()
    asked = [
        OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[1, 2])
        for topic_id in (unknown, topic.topic_id, UUID(int=0))
    ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=asked)])
    (group,) = (await ask(committed, 9, 10, request)).groups

    nowhere = [(-1, ErrorCode.UNKNOWN_TOPIC_ID)] * 2
    assert ErrorCode.NONE == group.error_code
    assert [
        (unknown, nowhere),
        (topic.topic_id, [(7, ErrorCode.NONE), (-1, ErrorCode.NONE)]),
        (UUID(int=0), nowhere),
    ] == [
        (each.topic_id, [(one.committed_offset, one.error_code) for one in each.partitions])
        for each in group.topics
    ]


async def test_all_committed_offsets_have_ids_of_topics_that_exist(committed: Broker) -> None:
    topic = await committed.find_topic("t")
    gone = TopicPartition("gone", 0)
    await committed._storage.ack("g", {gone: OffsetAndMetadata(1)})
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (group,) = (await ask(committed, 9, 10, request)).groups

    assert [(topic.topic_id, [5, 7])] == [
        (each.topic_id, [one.committed_offset for one in each.partitions]) for each in group.topics
    ]
