from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode, KafkaStorageError
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from tests.handlers.members import join, new_group_broker, take_part
from tests.handlers.support import T0, Shim, ask, away, create, install, reconfigure

T1 = TopicPartition("t", 1)


async def commit(
    broker: Broker,
    offsets: dict[TopicPartition, tuple[int, int, str | None]],
    *,
    version: int = 9,
    group_id: str = "g",
    generation: int = -1,
    member_id: str = "",
) -> list[ErrorCode]:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, (offset, epoch, metadata) in offsets.items():
        topic = topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic, partitions=[]))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        retention_time_ms=5 if version < 5 else -1,
        topics=list(topics.values()),
    )
    response = await ask(broker, 8, version, request)
    assert isinstance(response, OffsetCommitResponse)
    assert [
        (topic.name, [each.partition_index for each in topic.partitions]) for topic in topics.values()
    ] == [(topic.name, [each.partition_index for each in topic.partitions]) for topic in response.topics]
    return [ErrorCode(each.error_code) for topic in response.topics for each in topic.partitions]


@pytest.mark.parametrize("version", range(2, 10))
async def test_offsets_are_committed_with_their_metadata(broker: Broker, version: int) -> None:
    await create(broker, partitions=2)

    errors = await commit(broker, {T0: (5, 0, "done"), T1: (0, -1, None)}, version=version)

    assert [ErrorCode.NONE] * 2 == errors
    assert {T0: OffsetAndMetadata(5, 0, "done"), T1: OffsetAndMetadata(0, -1, "")} == (
        await broker._storage.committed("g")
    )


async def test_topics_without_partitions_are_not_answered(broker: Broker) -> None:
    topics = [OffsetCommitRequestTopic(name="t", partitions=[])]

    assert [] == (await ask(broker, 8, 9, OffsetCommitRequest(group_id="g", topics=topics))).topics


async def test_unknown_partitions_do_not_fail_other_partitions(broker: Broker) -> None:
    await create(broker)

    errors = await commit(broker, {T0: (1, -1, ""), T1: (1, -1, ""), TopicPartition("none", 0): (1, -1, "")})

    assert [ErrorCode.NONE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2] == errors


async def test_too_long_metadata_is_refused(broker: Broker) -> None:
    await create(broker, partitions=2)
    reconfigure(broker, offset_metadata_max_bytes=3)

    errors = await commit(broker, {T0: (1, -1, "abcd"), T1: (1, -1, "äöü")})

    assert [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE] == errors


@pytest.mark.parametrize(
    "version, error", [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
async def test_commit_of_an_unknown_member_is_refused(broker: Broker, version: int, error: ErrorCode) -> None:
    await create(broker)

    errors = await commit(
        broker,
        {T0: (1, -1, ""), TopicPartition("none", 0): (1, -1, "")},
        version=version,
        generation=1,
        member_id="m",
    )

    assert [error, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == errors
    assert {} == await broker._storage.committed("g")


async def test_commit_with_member_id_and_without_generation_is_accepted(broker: Broker) -> None:
    await create(broker)

    assert [ErrorCode.NONE] == await commit(broker, {T0: (1, -1, "")}, member_id="somebody")


async def test_empty_group_id_is_accepted(broker: Broker) -> None:
    await create(broker)

    assert [ErrorCode.NONE] == await commit(broker, {T0: (1, -1, "")}, group_id="")


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    await create(broker)

    async def fail(
        _: str, offsets: dict[TopicPartition, object], **__: object
    ) -> dict[TopicPartition, object]:
        return dict.fromkeys(offsets, KafkaStorageError())

    for verbs in ({"topic": away}, {"ack": away}, {"ack": fail}):
        storage = broker._storage
        install(broker, Shim(storage, **verbs))
        assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == await commit(broker, {T0: (1, -1, "")})
        install(broker, storage)


async def test_group_with_members_accepts_commits_of_members_only() -> None:
    broker = await new_group_broker()
    await create(broker)
    joined = await take_part(broker)

    async def commit_as(member_id: str, generation: int) -> list[ErrorCode]:
        return await commit(broker, {T0: (1, -1, "")}, member_id=member_id, generation=generation)

    assert [ErrorCode.NONE] == await commit_as(joined.member_id, 1)
    assert [ErrorCode.ILLEGAL_GENERATION] == await commit_as(joined.member_id, 0)
    assert [ErrorCode.UNKNOWN_MEMBER_ID] == await commit_as("made-up", 1)
    assert [ErrorCode.UNKNOWN_MEMBER_ID] == await commit_as("", -1)


async def test_commit_before_the_assignment_is_rebalance_in_progress() -> None:
    broker = await new_group_broker()
    await create(broker)
    joined = await join(broker)

    assert [ErrorCode.REBALANCE_IN_PROGRESS] == await commit(
        broker, {T0: (1, -1, "")}, member_id=joined.member_id, generation=1
    )


async def test_group_errors_take_precedence_over_partition_errors(broker: Broker) -> None:
    await create(broker, partitions=2)
    reconfigure(broker, offset_metadata_max_bytes=3)

    errors = await commit(broker, {T0: (1, -1, "abcd"), T1: (1, -1, "")}, generation=1, member_id="m")

    assert [ErrorCode.GROUP_ID_NOT_FOUND] * 2 == errors


async def test_topics_are_committed_by_id(broker: Broker) -> None:
    topic, unknown = await create(broker), uuid4()
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=4, committed_metadata="m"
                    )
                    for number in (0, 1)
                ],
            )
            for topic_id in (unknown, topic.topic_id, UUID(int=0))
        ],
    )
    response = await ask(broker, 8, 10, request)

    nowhere, none = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [
        (unknown, [nowhere, nowhere]),
        (topic.topic_id, [ErrorCode.NONE, none]),
        (UUID(int=0), [nowhere, nowhere]),
    ] == [(each.topic_id, [one.error_code for one in each.partitions]) for each in response.topics]
    assert {T0: OffsetAndMetadata(4, -1, "m")} == await broker._storage.committed("g")


async def test_ids_of_a_deleted_topic_commit_nothing_for_its_successor(broker: Broker) -> None:
    old = await create(broker)
    await broker.delete_topic(old)
    await create(broker)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=4, committed_metadata=None)
    topics = [OffsetCommitRequestTopic(topic_id=old.topic_id, partitions=[partition])]

    response = await ask(broker, 8, 10, OffsetCommitRequest(group_id="g", topics=topics))

    assert ErrorCode.UNKNOWN_TOPIC_ID == response.topics[0].partitions[0].error_code
    assert {} == await broker._storage.committed("g")
