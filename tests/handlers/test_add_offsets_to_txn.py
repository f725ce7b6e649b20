from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from tests.handlers.support import Shim, away, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        yield broker


@pytest.fixture
async def producer(broker: Broker) -> TransactionalProducer:
    producer = TransactionalProducer(broker, version=1)
    await producer.init()
    return producer


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("group_id", ["g", ""], ids=["unknown", "empty"])
async def test_group_is_added_to_the_transaction(
    broker: Broker, producer: TransactionalProducer, group_id: str, version: int
) -> None:
    assert ErrorCode.NONE == await producer.add_group(group_id, version=version)

    found = await broker.transactions.describe("x")
    assert ("Ongoing", {group_id}) == (found.state.value, {*found.groups})


async def test_group_id_that_is_too_long_is_refused(producer: TransactionalProducer) -> None:
    assert ErrorCode.INVALID_GROUP_ID == await producer.add_group("g" * 32_768)


async def test_unknown_and_empty_ids(broker: Broker) -> None:
    unknown = TransactionalProducer(broker, "made-up", producer_id=1, epoch=0)
    empty = TransactionalProducer(broker, "", producer_id=1, epoch=0)

    assert ErrorCode.INVALID_PRODUCER_ID_MAPPING == await unknown.add_group()
    assert ErrorCode.INVALID_REQUEST == await empty.add_group()


@pytest.mark.parametrize(
    "version, error", [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
async def test_fenced_producer_gets_the_error_that_its_version_knows(
    broker: Broker, producer: TransactionalProducer, version: int, error: ErrorCode
) -> None:
    await TransactionalProducer(broker).init()

    assert error == await producer.add_group(version=version)


async def test_unreachable_storage_is_a_retriable_error(
    broker: Broker, producer: TransactionalProducer
) -> None:
    broker.transactions.storage = Shim(broker._storage, save=away, load=away)

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == await producer.add_group()
