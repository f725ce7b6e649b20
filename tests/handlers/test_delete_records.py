from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.support import T0, Shim, append, ask, away, create, install

HIGH_WATERMARK = -1
Answer = tuple[int, ErrorCode]


async def delete(broker: Broker, *wanted: tuple[TopicPartition, int]) -> dict[TopicPartition, Answer]:
    """Delete up to these offsets, each in a separate entry. Return low watermark and error of each partition."""
    topics = [
        DeleteRecordsTopic(
            name=tp.topic, partitions=[DeleteRecordsPartition(partition_index=tp.partition, offset=offset)]
        )
        for tp, offset in wanted
    ]
    response = await ask(broker, 21, 2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
    answers = [
        (TopicPartition(topic.name, each.partition_index), (each.low_watermark, ErrorCode(each.error_code)))
        for topic in response.topics
        for each in topic.partitions
    ]
    assert len(dict(answers)) == len(answers)
    return dict(answers)


async def start(broker: Broker, tp: TopicPartition = T0) -> int:
    return (await broker._storage.latest(tp)).log_start_offset


async def test_log_starts_at_the_offset_also_inside_a_batch(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"0", b"1", b"2", b"3", b"4")

    assert {T0: (3, ErrorCode.NONE)} == await delete(broker, (T0, 3))
    assert 3 == await start(broker)
    assert 3 == (await broker._storage.earliest(T0)).offset


async def test_minus_1_is_the_high_watermark(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"0", b"1")

    assert {T0: (2, ErrorCode.NONE)} == await delete(broker, (T0, HIGH_WATERMARK))
    assert (2, 2) == (await start(broker), (await broker._storage.latest(T0)).high_watermark)


async def test_records_of_an_empty_partition_can_be_deleted(broker: Broker) -> None:
    await create(broker)

    assert {T0: (0, ErrorCode.NONE)} == await delete(broker, (T0, HIGH_WATERMARK))


async def test_log_start_offset_does_not_decrease(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"0", b"1", b"2")
    await delete(broker, (T0, 2))

    assert {T0: (2, ErrorCode.NONE)} == await delete(broker, (T0, 1))


@pytest.mark.parametrize("offset", [3, 2**62, -2, -(2**62)])
async def test_offset_beyond_the_end_or_negative_is_out_of_range(broker: Broker, offset: int) -> None:
    await create(broker)
    await append(broker, T0, b"0", b"1")

    assert {T0: (-1, ErrorCode.OFFSET_OUT_OF_RANGE)} == await delete(broker, (T0, offset))
    assert 0 == await start(broker)


async def test_partitions_are_answered_independently(broker: Broker) -> None:
    await create(broker, partitions=2)
    await create(broker, "__consumer_offsets")
    await create(broker, "kept", cleanup_policy="compact")
    await append(broker, TopicPartition("t", 1), b"0", b"1")

    answers = await delete(
        broker,
        (TopicPartition("t", 2), 0),
        (TopicPartition("missing", 0), 0),
        (TopicPartition("__consumer_offsets", 0), 0),
        (TopicPartition("kept", 0), 0),
        (TopicPartition("t", 1), 1),
        (TopicPartition("t", -1), 0),
    )

    assert {
        TopicPartition("t", 2): (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        TopicPartition("t", 1): (1, ErrorCode.NONE),
        TopicPartition("t", -1): (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        TopicPartition("missing", 0): (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        TopicPartition("__consumer_offsets", 0): (-1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        TopicPartition("kept", 0): (-1, ErrorCode.POLICY_VIOLATION),
    } == answers


async def test_records_are_deleted_under_compact_and_delete_policy(broker: Broker) -> None:
    await create(broker, cleanup_policy="compact,delete")
    await append(broker, T0, b"0", key=b"a")

    assert {T0: (1, ErrorCode.NONE)} == await delete(broker, (T0, 1))


async def test_last_offset_of_a_duplicate_partition_is_used(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"0", b"1", b"2")

    assert {T0: (1, ErrorCode.NONE)} == await delete(broker, (T0, 3), (T0, 1))


async def test_unreachable_storage_is_a_storage_error(broker: Broker) -> None:
    await create(broker)
    install(broker, Shim(broker._storage, truncate_before=away))

    assert {T0: (-1, ErrorCode.KAFKA_STORAGE_ERROR)} == await delete(broker, (T0, 0))
