from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.codec import decode
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from tests.handlers.support import NOW_MS, T0, Shim, append, ask, away, create, install, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating
from tests.protocol.samples import encoded


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        await create(broker)
        yield broker


async def describe(broker: Broker, name: str = "t", *indexes: int) -> list[PartitionResponse]:
    """Return the partitions as a client reads them, since those of repeated ones are encoded already."""
    asked = TopicRequest(name=name, partition_indexes=list(indexes or (0,)))
    handled = await ask(broker, 61, 0, DescribeProducersRequest(topics=[asked]))
    response, _ = decode(DescribeProducersResponse, 0, memoryview(encoded(handled, 0)))
    (topic,) = response.topics
    assert name == topic.name
    partitions: list[PartitionResponse] = topic.partitions
    return partitions


async def states(broker: Broker) -> list[tuple[int, ...]]:
    (partition,) = await describe(broker)
    assert ErrorCode.NONE == partition.error_code
    return [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in partition.active_producers
    ]


async def test_idempotent_producer_is_described(broker: Broker) -> None:
    await append(broker, T0, b"a", b"b", producer_id=7, producer_epoch=3, base_sequence=0)
    await append(broker, T0, b"plain")

    assert [(7, 3, 1, NOW_MS, -1, -1)] == await states(broker)


async def test_open_transaction_is_described_until_it_ends(broker: Broker) -> None:
    producer = TransactionalProducer(broker)
    await producer.init()
    await append(broker, T0, b"plain")
    await producer.send(b"a")
    producer_id = producer.producer_id

    assert [(producer_id, 0, 0, NOW_MS, -1, 1)] == await states(broker)
    await producer.finish()
    assert [(producer_id, 1, -1, NOW_MS, 0, -1)] == await states(broker)


@pytest.mark.parametrize(
    "name, index, error",
    [
        ("made-up", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("not/valid", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_errors_of_partitions(broker: Broker, name: str, index: int, error: ErrorCode) -> None:
    (partition,) = await describe(broker, name, index)

    assert (error, []) == (partition.error_code, partition.active_producers)
    assert partition.error_message


async def test_partitions_have_their_own_results(broker: Broker) -> None:
    await append(broker, T0, b"a", producer_id=7, producer_epoch=3, base_sequence=0)

    found = await describe(broker, "t", 0, 1, 0)

    assert [1, 0, 1] == [len(each.active_producers) for each in found]


async def test_repeated_topics_are_answered_each(broker: Broker) -> None:
    await append(broker, T0, b"a", producer_id=7, producer_epoch=3, base_sequence=0)
    asked = [TopicRequest(name=name, partition_indexes=[0]) for name in ("t", "made-up", "t")]

    handled = await ask(broker, 61, 0, DescribeProducersRequest(topics=asked))
    response, _ = decode(DescribeProducersResponse, 0, memoryview(encoded(handled, 0)))

    assert [("t", 1), ("made-up", 0), ("t", 1)] == [
        (each.name, len(each.partitions[0].active_producers)) for each in response.topics
    ]


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    install(broker, Shim(broker._storage, active_producers=away))

    (partition,) = await describe(broker)
    assert ErrorCode.KAFKA_STORAGE_ERROR == partition.error_code
