from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.support import ask, create, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating, fetched

Outcomes = dict[int, list[tuple[str, int, ErrorCode]]]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        await create(broker, partitions=2)
        yield broker


def marker(
    producer_id: int,
    epoch: int = 0,
    *,
    topics: dict[str, list[int]] | None = None,
    commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> WritableTxnMarker:
    asked = {"t": [0]} if topics is None else topics
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in asked.items()
        ],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )


async def write(broker: Broker, *markers: WritableTxnMarker, version: int = 2) -> Outcomes:
    response = await ask(broker, 27, version, WriteTxnMarkersRequest(markers=list(markers)))
    assert isinstance(response, WriteTxnMarkersResponse)
    return {
        each.producer_id: [
            (topic.name, partition.partition_index, ErrorCode(partition.error_code))
            for topic in each.topics
            for partition in topic.partitions
        ]
        for each in response.markers
    }


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_marker_ends_an_open_transaction(broker: Broker, version: int, commit: bool) -> None:
    producer = TransactionalProducer(broker)
    await producer.init()
    await producer.send(b"a")
    assert 0 == (await fetched(broker)).last_stable_offset

    outcomes = await write(broker, marker(producer.producer_id, commit=commit), version=version)

    assert {producer.producer_id: [("t", 0, ErrorCode.NONE)]} == outcomes
    data = await fetched(broker)
    assert (2, 2) == (data.last_stable_offset, data.high_watermark)
    assert (0 if commit else 1) == len(data.aborted_transactions or ())


@pytest.mark.parametrize("producer_id, epoch", [(-1, 0), (-5, 3), (5, -1), (-1, -1)])
async def test_marker_from_nobody_is_refused(broker: Broker, producer_id: int, epoch: int) -> None:
    asked = {"t": [0, 1, 7], "absent": [0]}
    outcomes = await write(broker, marker(producer_id, epoch, topics=asked), marker(9))

    refused, unknown = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {("t", 0, refused), ("t", 1, refused), ("t", 7, unknown), ("absent", 0, unknown)} == {
        *outcomes[producer_id]
    }
    assert [("t", 0, ErrorCode.NONE)] == outcomes[9]
    assert 1 == (await fetched(broker)).high_watermark


async def test_second_version_needs_a_raised_epoch(broker: Broker) -> None:
    producer = TransactionalProducer(broker)
    await producer.init()
    await producer.send(b"a")

    equal = await write(broker, marker(producer.producer_id, 0, transaction_version=2))
    raised = await write(broker, marker(producer.producer_id, 1, transaction_version=2))

    assert [[("t", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]] == list(equal.values())
    assert [[("t", 0, ErrorCode.NONE)]] == list(raised.values())


async def test_markers_are_answered_by_producer_and_partition(broker: Broker) -> None:
    first, second, empty = (
        marker(1, topics={"t": [0, 5], "made-up": [0]}),
        marker(2, topics={"t": [1]}),
        marker(3, topics={}),
    )
    again = marker(1, topics={"t": [1]})

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {
        1: [
            ("t", 5, unknown),
            ("t", 0, ErrorCode.NONE),
            ("t", 1, ErrorCode.NONE),
            ("made-up", 0, unknown),
        ],
        2: [("t", 1, ErrorCode.NONE)],
    } == await write(broker, first, second, again, empty)
    assert [1, 2] == [
        (await fetched(broker, TopicPartition("t", partition))).high_watermark for partition in (0, 1)
    ]


async def test_earlier_coordinator_is_fenced(broker: Broker) -> None:
    await write(broker, marker(1, coordinator_epoch=3))

    assert {1: [("t", 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED)]} == await write(
        broker, marker(1, coordinator_epoch=2)
    )


async def test_request_without_markers_is_answered(broker: Broker) -> None:
    assert {} == await write(broker)
