from __future__ import annotations

from collections.abc import Sequence

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tests.handlers.share_groups import ACCEPT, ShareMember, configure
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
