from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from attrs import astuple
from trio.testing import MockClock

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from korvet.share.coordinator import SHARE
from korvet.storage.interface import TopicPartition
from korvet.storage.shares import SharePartitionKey
from tests.handlers.share_groups import ACCEPT, RELEASE, ShareMember, configure
from tests.handlers.support import T0, append, ask, create

Found = list[tuple[str, int, int, int, int]]


async def offsets(broker: Broker, topics: dict[str, Sequence[int]] | None = None, version: int = 1) -> Found:
    """Return topic, partition, start offset, lag and error code of each share partition."""
    asked = (
        None
        if topics is None
        else [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(numbers))
            for name, numbers in topics.items()
        ]
    )
    group = DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=asked)
    response = await ask(broker, 90, version, DescribeShareGroupOffsetsRequest(groups=[group]))
    (found,) = response.groups
    assert ErrorCode.NONE == found.error_code
    return [
        (topic.topic_name, each.partition_index, each.start_offset, each.lag, each.error_code)
        for topic in found.topics
        for each in topic.partitions
    ]


@pytest.fixture
async def alice(broker: Broker) -> ShareMember:
    topic = await create(broker, partitions=2)
    await configure(broker)
    await append(broker, T0, b"0", b"1", b"2", b"3")
    return ShareMember(broker, topic.topic_id)


async def test_start_offset_and_lag_follow_acknowledgements(broker: Broker, alice: ShareMember) -> None:
    before = await offsets(broker)
    await alice.fetch(0, max_records=3)
    acquired = await offsets(broker)
    await alice.acknowledge((0, 1, [ACCEPT]))

    assert [] == before
    assert [("t", 0, 0, 4, 0)] == acquired
    assert [("t", 0, 2, 2, 0)] == await offsets(broker)


async def test_a_state_that_cannot_be_read_is_an_error_of_its_partition(
    broker: Broker, alice: ShareMember
) -> None:
    await alice.fetch(0, 1)
    key = str(SharePartitionKey(TopicPartition("t", 1), alice.topic_id, "g"))
    document = await broker.share.coordinator.storage.load(SHARE, key)
    assert document is not None
    await broker.share.coordinator.storage.save(SHARE, key, b"{}", expected_version=document.version)

    first, second = await offsets(broker)

    assert ("t", 0, 0, 4, ErrorCode.NONE) == first
    assert ("t", 1, -1, -1, ErrorCode.KAFKA_STORAGE_ERROR) == second


async def in_flight(broker: Broker, most: int, topic: str = "t") -> list[Any]:
    """Return the partitions of the answer to a request for the records in flight."""
    asked = DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[0])
    group = DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=[asked])
    request = DescribeShareGroupOffsetsRequest(groups=[group], max_in_flight=most)
    response = await ask(broker, 90, 1, request)
    return list(response.groups[0].topics[0].partitions)


async def test_records_in_flight_have_their_members_deliveries_and_times(
    broker: Broker, alice: ShareMember, autojump_clock: MockClock
) -> None:
    (before,) = await in_flight(broker, 10)
    await alice.fetch(0)
    await trio.sleep(2)
    await alice.acknowledge((0, 0, [ACCEPT]), (1, 1, [RELEASE]))
    (found,) = await in_flight(broker, 10)
    (limited,) = await in_flight(broker, 1)

    assert (0, []) == (before.in_flight_count, before.in_flight)
    assert 3 == found.in_flight_count == limited.in_flight_count
    assert found.in_flight[:1] == limited.in_flight
    released, held = found.in_flight
    assert (1, 1, 1, 1, "") == astuple(released)[:5]
    assert (2, 3, 2, 1, alice.member_id) == astuple(held)[:5]
    assert (2000, 28_000) == (held.acquired_ms, held.lock_ms)


async def test_records_in_flight_of_missing_topics_are_errors(broker: Broker, alice: ShareMember) -> None:
    (found,) = await in_flight(broker, 10, "missing")

    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == found.error_code


async def test_an_answer_has_no_records_in_flight_unless_requested(
    broker: Broker, alice: ShareMember
) -> None:
    await alice.fetch(0)

    (found,) = await in_flight(broker, 0)

    assert (0, -1, []) == (found.start_offset, found.in_flight_count, found.in_flight)


async def test_named_partitions_without_a_state_have_unknown_offsets(
    broker: Broker, alice: ShareMember
) -> None:
    found = await offsets(broker, {"t": [0, 1, 7], "missing": [0]})

    assert [("t", 0), ("t", 1), ("t", 7), ("missing", 0)] == [each[:2] for each in found]
    assert {(-1, -1, ErrorCode.NONE)} == {each[2:] for each in found}


async def test_a_topic_that_is_created_again_has_no_state(broker: Broker, alice: ShareMember) -> None:
    await alice.fetch(0)

    await broker.delete_topic(await broker.find_topic("t"))
    await create(broker, partitions=2)

    assert [] == await offsets(broker)
    assert [] == list(await broker._storage.documents("share"))
