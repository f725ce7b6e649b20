from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.handlers.support import T0, append, ask, create


async def ends(broker: Broker, name: str, *asked: tuple[int, int, int]) -> list[EpochEndOffset]:
    """Return the responses for (partition, current epoch, epoch)."""
    partitions = [
        OffsetForLeaderPartition(partition=number, current_leader_epoch=current, leader_epoch=epoch)
        for number, current, epoch in asked
    ]
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=partitions)])
    response = await ask(broker, 23, 4, request)
    assert isinstance(response, OffsetForLeaderEpochResponse)
    (topic,) = response.topics
    assert name == topic.topic
    return topic.partitions


async def test_current_epoch_ends_at_the_log_end(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"a", b"b")

    (end,) = await ends(broker, "t", (0, 0, 0))

    assert (ErrorCode.NONE, 0, 2) == (end.error_code, end.leader_epoch, end.end_offset)


async def test_unknown_epoch_has_no_end_offset(broker: Broker) -> None:
    await create(broker)

    (end,) = await ends(broker, "t", (0, -1, 7))

    assert (ErrorCode.NONE, -1, -1) == (end.error_code, end.leader_epoch, end.end_offset)


async def test_current_leader_epoch_is_checked_first(broker: Broker) -> None:
    await create(broker)

    (end,) = await ends(broker, "t", (0, 1, 0))

    assert (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1) == (end.error_code, end.leader_epoch, end.end_offset)


@pytest.mark.parametrize("name, number", [("t", 1), ("t", -1), ("none", 0)])
async def test_missing_partitions_are_unknown(broker: Broker, name: str, number: int) -> None:
    await create(broker)

    (end,) = await ends(broker, name, (number, -1, 0))

    assert (number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1) == (
        end.partition,
        end.error_code,
        end.end_offset,
    )


async def test_partitions_are_answered_in_request_order(broker: Broker) -> None:
    await create(broker, partitions=3)

    assert [2, 0, 1] == [each.partition for each in await ends(broker, "t", (2, 0, 0), (0, 0, 0), (1, 0, 0))]
