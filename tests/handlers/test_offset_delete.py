from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.members import OFFSET_DELETE, U0, answer, commit, new_group_broker, take_part
from tests.handlers.support import T0, create


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


async def delete_offsets(broker: Broker, *tps: TopicPartition, group_id: str = "g") -> Any:
    topics = [
        OffsetDeleteRequestTopic(
            name=tp.topic, partitions=[OffsetDeleteRequestPartition(partition_index=tp.partition)]
        )
        for tp in tps
    ]
    response = await answer(broker, OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=group_id, topics=topics))
    if response.error_code:
        return ErrorCode(response.error_code)
    return [ErrorCode(topic.partitions[0].error_code) for topic in response.topics]


async def test_offsets_are_deleted_independently(broker: Broker) -> None:
    await create(broker)
    await create(broker, "u")
    joined = await take_part(broker)
    await commit(broker, joined, T0)
    await commit(broker, joined, U0)
    errors = await delete_offsets(broker, T0, U0, TopicPartition("u", 1), TopicPartition("none", 0))

    assert [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ] == errors
    assert {T0} == set(await broker._storage.committed("g"))


async def test_group_error_is_the_only_error(broker: Broker) -> None:
    await create(broker)
    await take_part(broker, protocol_type="connect")

    assert ErrorCode.NON_EMPTY_GROUP == await delete_offsets(broker, T0)
    assert ErrorCode.GROUP_ID_NOT_FOUND == await delete_offsets(broker, T0, group_id="made-up")
    assert ErrorCode.INVALID_GROUP_ID == await delete_offsets(broker, T0, group_id="")
