from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from tests.handlers.consumer_groups import ConsumerMember
from tests.handlers.share_groups import ACCEPT, ShareMember
from tests.handlers.support import T0, append, ask, create, new_broker
from tests.handlers.test_describe_share_group_offsets import offsets


async def alter(
    broker: Broker, offset: int, topic: str = "t", partition: int = 0, group_id: str = "g"
) -> int:
    """Return the error code of the group, or of the partition."""
    wanted = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[wanted])]
    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
    response = await ask(broker, 91, 0, request)
    if response.error_code:
        return int(response.error_code)
    return int(response.responses[0].partitions[0].error_code)


@pytest.fixture
async def alice(broker: Broker) -> ShareMember:
    topic = await create(broker)
    await append(broker, T0, b"0", b"1", b"2", b"3")
    return ShareMember(broker, topic.topic_id)


async def test_a_new_group_begins_where_it_was_altered(broker: Broker, alice: ShareMember) -> None:
    assert ErrorCode.NONE == await alter(broker, 1)

    assert [("t", 0, 1, 3, 0)] == await offsets(broker)
    assert ["g"] == [group.group_id for group in await broker.groups.groups()]
    assert [(1, 3, 1)] == await alice.acquired(0)


async def test_a_group_delivers_again_what_it_has_finished(broker: Broker, alice: ShareMember) -> None:
    await alter(broker, 0)
    await alice.fetch(0)
    await alice.acknowledge((0, 3, [ACCEPT]), share_session_epoch=-1)

    await alter(broker, 2)

    assert [(2, 3, 1)] == await ShareMember(broker, alice.topic_id).acquired(0)


async def test_another_broker_notices_altered_offsets(broker: Broker, alice: ShareMember) -> None:
    await alice.fetch(0)
    other = await new_broker(broker._storage)  # type: ignore[arg-type]

    await alter(other, 0)

    assert [(0, 3, 1)] == await ShareMember(broker, alice.topic_id).acquired(0)


@pytest.mark.parametrize("offset, expected", [(-5, [(0, 3, 1)]), (99, [])])
async def test_offsets_outside_of_the_log_are_clamped(
    broker: Broker, alice: ShareMember, offset: int, expected: list[tuple[int, int, int]]
) -> None:
    await alter(broker, offset)

    assert expected == await alice.acquired(0)
    await append(broker, T0, b"4")
    assert [(4, 4, 1)] == await alice.acquired()


async def test_groups_with_members_and_of_other_types_are_refused(broker: Broker, alice: ShareMember) -> None:
    await alice.beat(subscribed_topic_names=["t"])
    await ConsumerMember(broker, "consumers").join("t")

    assert ErrorCode.NON_EMPTY_GROUP == await alter(broker, 0)
    assert ErrorCode.GROUP_ID_NOT_FOUND == await alter(broker, 0, group_id="consumers")


async def test_unknown_topics_and_partitions_are_refused(broker: Broker, alice: ShareMember) -> None:
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == await alter(broker, 0, "missing")
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == await alter(broker, 0, partition=9)
