from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from korvet.protocol.schema import ZERO_UUID
from tests.handlers.support import Shim, ask, away, create, install, new_broker

Page = tuple[dict[str, list[int]], tuple[str, int] | None]


async def describe(
    broker: Broker, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = await ask(broker, 75, 0, request)
    assert isinstance(response, DescribeTopicPartitionsResponse)
    return response


def page(response: DescribeTopicPartitionsResponse) -> Page:
    """Return the partitions in a response by topic, and its next cursor."""
    topics = {
        topic.name or "": [each.partition_index for each in topic.partitions] for topic in response.topics
    }
    following = response.next_cursor
    return topics, None if following is None else (following.topic_name, following.partition_index)


async def test_topic_is_described_as_in_metadata(broker: Broker) -> None:
    stored = await create(broker, "t", 2)

    (topic,) = (await describe(broker, "t")).topics

    assert (ErrorCode.NONE, "t", stored.topic_id, False) == (
        topic.error_code,
        topic.name,
        topic.topic_id,
        topic.is_internal,
    )
    assert 0 < topic.topic_authorized_operations
    assert [0, 1] == [each.partition_index for each in topic.partitions]
    for partition in topic.partitions:
        assert (0, 1, 0, [1], [1], [], [], []) == (
            partition.error_code,
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.eligible_leader_replicas,
            partition.last_known_elr,
            partition.offline_replicas,
        )


async def test_topics_are_sorted_and_unique(broker: Broker) -> None:
    for name in ("b", "a", "C"):
        await create(broker, name)

    assert ["C", "a", "b"] == [topic.name for topic in (await describe(broker)).topics]
    assert ["a", "b"] == [topic.name for topic in (await describe(broker, "b", "a", "b")).topics]


async def test_missing_topics_are_reported_and_not_created(broker: Broker) -> None:
    await create(broker, "b")

    response = await describe(broker, "missing", "b", "a b")

    assert [
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, ZERO_UUID, 0),
        ("b", ErrorCode.NONE, (await broker._storage.topics())["b"].topic_id, 1),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ZERO_UUID, 0),
    ] == [(each.name, each.error_code, each.topic_id, len(each.partitions)) for each in response.topics]
    assert ["b"] == list(await broker._storage.topics())


async def test_full_response_has_a_cursor(broker: Broker) -> None:
    await create(broker, "a", 3)
    await create(broker, "b", 2)

    first = page(await describe(broker, limit=2))
    second = page(await describe(broker, limit=2, cursor=("a", 2)))
    third = page(await describe(broker, limit=2, cursor=("b", 1)))

    assert ({"a": [0, 1]}, ("a", 2)) == first
    assert ({"a": [2], "b": [0]}, ("b", 1)) == second
    assert ({"b": [1]}, None) == third


async def test_cursor_after_a_complete_topic_is_the_next_topic(broker: Broker) -> None:
    await create(broker, "a", 2)
    await create(broker, "b", 1)

    assert ({"a": [0, 1]}, ("b", 0)) == page(await describe(broker, limit=2))
    assert ({"a": [0, 1], "b": [0]}, None) == page(await describe(broker, limit=3))


@pytest.mark.parametrize("limit", [0, -5])
async def test_at_least_one_partition_is_returned(broker: Broker, limit: int) -> None:
    await create(broker, "a", 3)

    assert ({"a": [0]}, ("a", 1)) == page(await describe(broker, limit=limit))


async def test_at_most_2000_partitions_are_returned(broker: Broker) -> None:
    await create(broker, "a", 2001)

    topics, following = page(await describe(broker, limit=10_000))

    assert (2000, ("a", 2000)) == (len(topics["a"]), following)


async def test_cursor_may_name_a_deleted_topic_or_partition(broker: Broker) -> None:
    await create(broker, "a", 2)
    await create(broker, "c")

    assert ({"c": [0]}, None) == page(await describe(broker, cursor=("b", 7)))
    assert ({"a": [], "c": [0]}, None) == page(await describe(broker, cursor=("a", 9)))
    assert ({"b": [], "c": [0]}, None) == page(await describe(broker, "b", "c", cursor=("b", 7)))


@pytest.mark.parametrize("cursor", [("x", 0), ("a", -1)])
async def test_invalid_cursor_fails_all_topics(broker: Broker, cursor: tuple[str, int]) -> None:
    await create(broker, "a")

    response = await describe(broker, "b", "a", cursor=cursor)

    assert [("b", ErrorCode.INVALID_REQUEST), ("a", ErrorCode.INVALID_REQUEST)] == [
        (each.name, each.error_code) for each in response.topics
    ]


async def test_failing_topic_does_not_fail_other_topics(broker: Broker) -> None:
    await create(broker, "a")
    storage = broker._storage

    async def topic(name: str) -> object:
        return await (away() if name == "b" else storage.topic(name))

    install(broker, Shim(storage, topic=topic))

    response = await describe(broker, "a", "b")

    assert [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR] == [each.error_code for each in response.topics]


async def test_connection_ends_when_topics_cannot_be_listed(broker: Broker) -> None:
    install(broker, Shim(broker._storage, topics=away))

    with pytest.raises(Disconnect):
        await describe(broker)


@given(
    st.dictionaries(st.text("abC-", min_size=1, max_size=3), st.integers(1, 9), max_size=6), st.integers(1, 7)
)
async def test_pages_contain_every_partition_once(partitions: dict[str, int], limit: int) -> None:
    broker = await new_broker()
    for name, count in partitions.items():
        await create(broker, name, count)
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        topics, cursor = page(await describe(broker, limit=limit, cursor=cursor))
        found = [(name, number) for name, numbers in topics.items() for number in numbers]
        assert len(found) <= limit
        seen += found
        if cursor is None:
            break

    assert [(name, number) for name in sorted(partitions) for number in range(partitions[name])] == seen
