"""The client's transactions: all or nothing, through lost answers, and fenced by the next one of the id."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from korvet.client import LATEST, Client, OffsetAndMetadata, Record, TopicPartition, open_client
from korvet.client.isolation import READ_COMMITTED, READ_UNCOMMITTED
from korvet.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from korvet.testing import Drop, Error, RunningBroker, serving

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with serving() as broker:
        yield broker


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[Client]:
    """With an empty topic `t` of two partitions."""
    async with open_client(broker.bootstrap_servers) as client:
        await client.create_topic("t", partitions=2)
        yield client


async def read(client: Client, isolation_level: int = READ_COMMITTED) -> list[bytes | None]:
    """Return all values that can be read once no transaction is open. Its end is answered before its markers."""
    with trio.fail_after(10):
        ends = await client.list_offsets({T0: LATEST, T1: LATEST}, isolation_level=isolation_level)
        while isolation_level == READ_COMMITTED and ends != await client.list_offsets(
            {T0: LATEST, T1: LATEST}
        ):
            await trio.sleep(0.01)
            ends = await client.list_offsets({T0: LATEST, T1: LATEST}, isolation_level=isolation_level)
        until = {tp: end.offset for tp, end in ends.items()}
        consumer = client.consume({T0: 0, T1: 0}, until=until, isolation_level=isolation_level)
        return sorted([record.value async for record in consumer], key=str)


async def write(client: Client, *values: bytes, transactional_id: str = "x") -> None:
    async with client.transaction(transactional_id) as transaction:
        for number, value in enumerate(values):
            await client.produce("t", [Record(value, partition=number % 2)], transaction=transaction)


async def test_records_are_committed_at_the_end_of_the_block(client: Client) -> None:
    async with client.transaction("x") as transaction:
        await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
        await client.produce("t", [Record(b"b", partition=1)], transaction=transaction, acks=1)
        assert [b"a", b"b"] == await read(client, READ_UNCOMMITTED)
        stable = await client.list_offsets({T0: LATEST, T1: LATEST}, isolation_level=READ_COMMITTED)
        assert [0, 0] == [end.offset for end in stable.values()]
    assert [b"a", b"b"] == await read(client)


async def test_records_are_aborted_by_an_error(client: Client) -> None:
    async def fail() -> None:
        async with client.transaction("x") as transaction:
            await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await write(client, b"b")
    assert [b"b"] == await read(client)


async def test_records_are_aborted_by_cancellation(client: Client) -> None:
    with trio.CancelScope() as scope:
        async with client.transaction("x") as transaction:
            await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
            scope.cancel()
            await trio.sleep_forever()

    assert [] == await read(client)  # long before the transaction's timeout


async def test_empty_transaction_is_nothing(client: Client) -> None:
    await write(client)
    await write(client, b"a")
    assert [b"a"] == await read(client)


async def test_offsets_are_committed_with_the_records(client: Client) -> None:
    async with client.transaction("x") as transaction:
        await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
        await transaction.commit_offsets("g", {T1: OffsetAndMetadata(7, metadata="seven")})
        assert {} == await client.committed("g", [T1])
    committed = await client.committed("g", [T1], require_stable=True)

    assert (7, "seven") == (committed[T1].offset, committed[T1].metadata)


async def test_next_transaction_fences_the_previous_one(client: Client) -> None:
    async def be_fenced() -> None:
        async with client.transaction("x") as transaction:
            await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
            await write(client, b"b")
            await client.produce("t", [Record(b"c", partition=0)], transaction=transaction)

    with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
        await be_fenced()
    assert [b"b"] == await read(client)


async def test_producer_continues_until_it_is_fenced(broker: RunningBroker, client: Client) -> None:
    async with client.transaction("x") as transaction:
        await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
    broker.faults.add(Drop("after", api="InitProducerId", count=1))
    async with client.transaction("x", after=transaction) as transaction:
        await client.produce("t", [Record(b"b", partition=0)], transaction=transaction)
    await write(client, b"c")

    with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
        await client.transaction("x", after=transaction).__aenter__()
    assert [b"a", b"b", b"c"] == await read(client)


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_lost_requests_and_answers_change_nothing(
    broker: RunningBroker, client: Client, api: str, when: str
) -> None:
    fault = broker.faults.add(Drop(when, api=api, count=2))
    with trio.fail_after(30):
        await write(client, b"a", b"b")
        await write(client, b"c")

    assert 2 == fault.hits
    assert [b"a", b"b", b"c"] == await read(client)


async def test_refused_transactional_id_is_an_error(broker: RunningBroker, client: Client) -> None:
    broker.faults.add(Error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", api="InitProducerId"))
    with pytest.raises(TransactionalIdAuthorizationFailed, match="transactional id x"):
        await write(client, b"a")


async def test_timeout_above_the_maximum_is_an_error(client: Client) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        await client.transaction("x", timeout_ms=2**31 - 1).__aenter__()


async def test_unknown_partition_is_an_error_that_names_it(client: Client) -> None:
    async def add_unknown() -> None:
        async with client.transaction("x") as transaction:
            await client.produce("t", [Record(b"a", partition=0)], transaction=transaction)
            await transaction.add([T1, TopicPartition("t", 2)])

    with pytest.raises(UnknownTopicOrPartition, match="t-2"):
        await add_unknown()
    assert [] == await read(client)
