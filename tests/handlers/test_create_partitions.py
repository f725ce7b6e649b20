from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from korvet.storage.interface import DocumentConflict, Topic, TopicPartition
from tests.handlers.support import Shim, append, ask, away, create, install, reconfigure


def wanted(count: int, name: str = "t", assignments: list[list[int]] | None = None) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
    )


async def create_partitions(
    broker: Broker, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    results: list[CreatePartitionsTopicResult] = (await ask(broker, 37, 3, request)).results
    return results


async def partitions(broker: Broker, name: str = "t") -> int:
    topic = await broker._storage.topic(name)
    assert isinstance(topic, Topic)
    return topic.partitions


async def test_added_partitions_keep_records_and_settings(broker: Broker) -> None:
    before = await create(broker, partitions=2, retention_ms="1000")
    await append(broker, TopicPartition("t", 1))

    (result,) = await create_partitions(broker, wanted(4))

    after = await broker._storage.topic("t")
    assert after is not None
    assert ("t", ErrorCode.NONE, None) == (result.name, result.error_code, result.error_message)
    assert (4, before.topic_id, before.settings) == (after.partitions, after.topic_id, after.settings)
    assert 1 == (await broker._storage.latest(TopicPartition("t", 1))).high_watermark
    assert 0 == await append(broker, TopicPartition("t", 3))


@pytest.mark.parametrize(
    "count, words",
    [
        (3, "Topic already has 3 partition(s)."),
        (2, "The topic t currently has 3 partition(s); 2 would not be an increase."),
        (0, "would not be an increase"),
        (-1, "would not be an increase"),
        (11, "max.partitions=10"),
    ],
)
async def test_partition_counts_that_are_too_small_or_too_large_are_refused(
    broker: Broker, count: int, words: str
) -> None:
    reconfigure(broker, max_partitions=10)
    await create(broker, partitions=3)

    (result,) = await create_partitions(broker, wanted(count))

    assert ErrorCode.INVALID_PARTITIONS == result.error_code
    assert words in (result.error_message or "")
    assert 3 == await partitions(broker)


@pytest.mark.parametrize(
    "assignments, code, words",
    [
        ([[1], [1]], ErrorCode.NONE, ""),
        ([[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "add 2 additional partition(s), but only 1 assignment"),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "but only 0 assignment"),
        ([[1], [1], [1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "but only 3 assignment"),
        ([[1], []], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        ([[1], [2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 2, but no such broker is registered"),
        ([[1], [1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 1 more than once"),
    ],
)
async def test_new_partitions_may_only_be_assigned_to_this_broker(
    broker: Broker, assignments: list[list[int]], code: ErrorCode, words: str
) -> None:
    await create(broker)

    (result,) = await create_partitions(broker, wanted(3, assignments=assignments))

    assert code == result.error_code
    assert words in (result.error_message or "")
    assert (1 if code else 3) == await partitions(broker)


async def test_validate_only_adds_no_partitions(broker: Broker) -> None:
    await create(broker)

    (right,) = await create_partitions(broker, wanted(2), validate_only=True)
    (wrong,) = await create_partitions(broker, wanted(1), validate_only=True)

    assert (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS) == (right.error_code, wrong.error_code)
    assert 1 == await partitions(broker)


async def test_topics_are_answered_independently_and_once(broker: Broker) -> None:
    for name in ("a", "b"):
        await create(broker, name)

    results = await create_partitions(
        broker, wanted(2, "b"), wanted(2, "missing"), wanted(3, "b"), wanted(2, "a"), wanted(2, "x y")
    )

    assert [
        ("b", ErrorCode.INVALID_REQUEST),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", ErrorCode.NONE),
        ("x y", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ] == [(each.name, each.error_code) for each in results]
    assert (2, 1) == (await partitions(broker, "a"), await partitions(broker, "b"))


async def test_concurrent_request_sees_the_partitions_added_by_the_first(broker: Broker) -> None:
    await create(broker)
    storage = broker._storage

    async def alter_topic(topic: Topic, **_: object) -> Topic:
        install(broker, storage)
        await storage.alter_topic(topic, partitions=3)
        raise DocumentConflict

    install(broker, Shim(storage, alter_topic=alter_topic))

    (result,) = await create_partitions(broker, wanted(3))

    assert ErrorCode.INVALID_PARTITIONS == result.error_code
    assert "Topic already has 3 partition(s)." == result.error_message


async def test_unreachable_storage_is_a_storage_error(broker: Broker) -> None:
    await create(broker)
    install(broker, Shim(broker._storage, alter_topic=away))

    (result,) = await create_partitions(broker, wanted(3))

    assert ErrorCode.KAFKA_STORAGE_ERROR == result.error_code


async def test_partitions_beyond_the_request_and_broker_limits_are_refused(broker: Broker) -> None:
    reconfigure(broker, max_broker_partitions=12_000)
    for name in ("a", "b", "c"):
        await create(broker, name)

    results = await create_partitions(
        broker, wanted(6001, name="a"), wanted(5001, name="b"), wanted(4001, name="c")
    )
    later = await create_partitions(broker, wanted(5001, name="b"))

    refused = ErrorCode.POLICY_VIOLATION
    assert [ErrorCode.NONE, refused, ErrorCode.NONE] == [each.error_code for each in results]
    assert [refused] == [each.error_code for each in later]
