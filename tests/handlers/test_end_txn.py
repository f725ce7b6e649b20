from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from tests.handlers.support import T0, Shim, away, create, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating, fetched, settled


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_broker()) as broker:
        await create(broker)
        yield broker


async def initialized(broker: Broker, version: int) -> TransactionalProducer:
    producer = TransactionalProducer(broker, version=version)
    await producer.init()
    return producer


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", range(5))
async def test_first_generation_ends_with_the_same_epoch(broker: Broker, version: int, commit: bool) -> None:
    producer = await initialized(broker, 1)
    await producer.send(b"a")

    ended = await producer.end(commit=commit, version=version)

    assert ErrorCode.NONE == ended.error_code
    assert ("CompleteCommit" if commit else "CompleteAbort") == await settled(broker)
    assert 0 == (await broker.transactions.describe("x")).producer_epoch
    data = await fetched(broker)
    assert 2 == data.last_stable_offset
    assert (0 if commit else 1) == len(data.aborted_transactions or ())


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_second_generation_raises_the_epoch(broker: Broker, commit: bool) -> None:
    producer = await initialized(broker, 2)
    await producer.send(b"a")
    producer_id = producer.producer_id

    ended = await producer.end(commit=commit)

    assert (ErrorCode.NONE, producer_id, 1) == (ended.error_code, ended.producer_id, ended.producer_epoch)
    await settled(broker)
    assert 2 == (await fetched(broker)).last_stable_offset


@pytest.mark.parametrize("version", [4, 5])
async def test_commit_without_a_transaction_is_refused(broker: Broker, version: int) -> None:
    producer = await initialized(broker, 2)

    ended = await producer.end(version=version)

    assert (ErrorCode.INVALID_TXN_STATE, -1, -1) == (
        ended.error_code,
        ended.producer_id,
        ended.producer_epoch,
    )


@pytest.mark.parametrize(
    "version, error", [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
async def test_fenced_producer_gets_the_error_that_its_version_knows(
    broker: Broker, version: int, error: ErrorCode
) -> None:
    producer = await initialized(broker, 1)
    await initialized(broker, 1)

    assert error == (await producer.end(version=version)).error_code


async def test_unknown_and_empty_ids(broker: Broker) -> None:
    unknown = TransactionalProducer(broker, "made-up", producer_id=1, epoch=0)
    empty = TransactionalProducer(broker, "", producer_id=1, epoch=0)

    assert ErrorCode.INVALID_PRODUCER_ID_MAPPING == (await unknown.end()).error_code
    assert ErrorCode.INVALID_REQUEST == (await empty.end()).error_code


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    producer = await initialized(broker, 2)
    broker.transactions.storage = Shim(broker._storage, save=away, load=away)

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await producer.end(commit=False)).error_code


async def test_transaction_goes_on_in_the_next_one(broker: Broker) -> None:
    producer = await initialized(broker, 2)
    for number, commit in enumerate([True, False, True]):
        assert 2 * number == await producer.send(b"%d" % number)
        assert ErrorCode.NONE == (await producer.end(commit=commit)).error_code

    assert "CompleteCommit" == await settled(broker)
    data = await fetched(broker, T0)
    assert [(producer.producer_id, 2)] == [
        (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
    ]
