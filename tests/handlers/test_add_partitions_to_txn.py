from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.support import T0, Shim, ask, away, create, install, new_broker
from tests.handlers.transactional import TransactionalProducer, asked, coordinating

T1, U0 = TopicPartition("t", 1), TopicPartition("u", 0)
NONE = ErrorCode.NONE


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        await create(broker, partitions=2)
        await create(broker, "u")
        yield broker


@pytest.fixture
async def producer(broker: Broker) -> TransactionalProducer:
    producer = TransactionalProducer(broker, version=1)
    await producer.init()
    return producer


async def partitions_in(broker: Broker, transactional_id: str = "x") -> list[TopicPartition]:
    found = await broker.transactions.describe(transactional_id)
    return sorted(TopicPartition(topic, partition) for topic, partition, _ in found.partitions)


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(broker: Broker, producer: TransactionalProducer, version: int) -> None:
    assert [NONE, NONE, NONE] == await producer.add(T0, T1, U0, version=version)
    assert [T0, T1, U0] == await partitions_in(broker)


async def test_request_without_partitions_begins_a_transaction(
    broker: Broker, producer: TransactionalProducer
) -> None:
    assert [] == await producer.add()
    assert "Ongoing" == (await broker.transactions.describe("x")).state.value


@pytest.mark.parametrize(
    "wrong, error",
    [
        (TopicPartition("t", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("t", -1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("made-up", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("__consumer_offsets", 0), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
    ids=["partition", "negative", "topic", "internal"],
)
async def test_nothing_is_added_if_one_partition_cannot_be(
    broker: Broker, producer: TransactionalProducer, wrong: TopicPartition, error: ErrorCode
) -> None:
    errors = await producer.add(T1, wrong, U0)

    assert sorted([error, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.OPERATION_NOT_ATTEMPTED]) == sorted(
        errors
    )
    assert "Empty" == (await broker.transactions.describe("x")).state.value


async def test_repeated_partition_is_answered_twice(producer: TransactionalProducer) -> None:
    assert [NONE, NONE] == await producer.add(T0, T0)


async def test_unknown_and_empty_ids(broker: Broker) -> None:
    unknown = TransactionalProducer(broker, "made-up", producer_id=1, epoch=0)
    empty = TransactionalProducer(broker, "", producer_id=1, epoch=0)

    assert [ErrorCode.INVALID_PRODUCER_ID_MAPPING] == await unknown.add(T0)
    assert [ErrorCode.INVALID_REQUEST] == await empty.add(T0)


@pytest.mark.parametrize(
    "version, error",
    [
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
        (3, ErrorCode.PRODUCER_FENCED),
    ],
)
async def test_fenced_producer_gets_the_error_that_its_version_knows(
    broker: Broker, producer: TransactionalProducer, version: int, error: ErrorCode
) -> None:
    await TransactionalProducer(broker).init()

    assert [error] == await producer.add(T0, version=version)


async def test_unreachable_storage_is_a_retriable_error(
    broker: Broker, producer: TransactionalProducer
) -> None:
    broker.transactions.storage = Shim(broker._storage, save=away, load=away)

    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == await producer.add(T0)


async def test_topics_that_cannot_be_looked_up_are_a_retriable_error(
    broker: Broker, producer: TransactionalProducer
) -> None:
    install(broker, Shim(broker._storage, topic=away))

    assert [ErrorCode.COORDINATOR_NOT_AVAILABLE] == await producer.add(T0)


# --- Requests of brokers -------------------------------------------------------------------------------------


def entry(
    producer: TransactionalProducer, *tps: TopicPartition, verify_only: bool = False
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=asked(*tps),
    )


async def errors_of(
    broker: Broker, *entries: AddPartitionsToTxnTransaction, version: int = 5
) -> dict[str, list[ErrorCode]]:
    response = await ask(broker, 24, version, AddPartitionsToTxnRequest(transactions=list(entries)))
    assert isinstance(response, AddPartitionsToTxnResponse)
    assert NONE == response.error_code
    return {
        result.transactional_id: [
            ErrorCode(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        ]
        for result in response.results_by_transaction
    }


@pytest.mark.parametrize("version", [4, 5])
async def test_partitions_are_verified_one_by_one(
    broker: Broker, producer: TransactionalProducer, version: int
) -> None:
    await producer.add(T1)
    await producer.add(U0)

    found = await errors_of(broker, entry(producer, T1, T0, U0, verify_only=True), version=version)

    assert {"x": [NONE, ErrorCode.TRANSACTION_ABORTABLE, NONE]} == found
    assert [T1, U0] == await partitions_in(broker)


async def test_several_transactions_are_answered_independently(
    broker: Broker, producer: TransactionalProducer
) -> None:
    other = TransactionalProducer(broker, "y")
    await other.init()
    unknown = TransactionalProducer(broker, "made-up", producer_id=1, epoch=0)

    found = await errors_of(
        broker,
        entry(producer, T0),
        entry(unknown, T0, T1),
        entry(other, T1, TopicPartition("made-up", 0)),
        entry(TransactionalProducer(broker, ""), T0),
    )

    assert {
        "x": [NONE],
        "made-up": [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2,
        "y": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED],
        "": [ErrorCode.INVALID_REQUEST],
    } == {name: sorted(errors) if name == "y" else errors for name, errors in found.items()}
    assert [T0] == await partitions_in(broker)
    assert 2 == (await broker.transactions.describe("x")).version
