"""The client is an idempotent producer: lost responses and restarted brokers double no record."""

from __future__ import annotations

import pytest
import trio

from korvet.client import Record, TopicPartition, open_client
from korvet.protocol.errors import OutOfOrderSequenceNumber
from korvet.testing import Delay, Drop, Error, serving
from tests.processes import KorvetProcess

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("acks, stored", [(-1, 5), (1, 7)])
async def test_records_of_lost_responses_are_stored_once_with_acks_all(acks: int, stored: int) -> None:
    async with serving() as broker, open_client(broker.bootstrap_servers) as client:
        await client.create_topic("t", partitions=1)
        broker.faults.add(Drop("after", api="Produce", count=2))
        with trio.fail_after(30):
            first = await client.produce("t", [Record(b"0")], acks=acks)
            rest = await client.produce("t", [Record(b"%d" % n) for n in range(1, 5)], acks=acks)
        values = [record.value for record in await broker.records("t")]

    assert stored == len(values)
    assert [b"%d" % n for n in range(5)] == list(dict.fromkeys(values))
    if acks == -1:
        assert [0, 1, 2, 3, 4] == [produced.offset for produced in first + rest]


async def test_calls_share_a_producer_id_unless_they_are_concurrent() -> None:
    async with serving() as broker, open_client(broker.bootstrap_servers) as client:
        await client.create_topic("t", partitions=1)
        requests = broker.faults.add(Delay(0, api="InitProducerId"))
        for n in range(3):
            await client.produce("t", [Record(b"%d" % n)])
        async with client.producer() as first, client.producer() as second:
            assert first.producer_id != second.producer_id
            assert 3 == first.next(T0).base_sequence
            await client.produce("t", [Record(b"3")])
        values = [record.value for record in await broker.records("t")]

    assert [b"0", b"1", b"2", b"3"] == values
    assert 3 == requests.hits


async def test_brokers_that_refuse_producer_ids_get_records_without_one() -> None:
    async with serving() as broker, open_client(broker.bootstrap_servers) as client:
        await client.create_topic("t", partitions=1)
        refused = broker.faults.add(Error("CLUSTER_AUTHORIZATION_FAILED", api="InitProducerId"))
        for n in range(2):
            await client.produce("t", [Record(b"%d" % n)])
        values = [record.value for record in await broker.records("t")]

    assert [b"0", b"1"] == values
    assert 1 == refused.hits


@pytest.mark.slow
async def test_broker_that_was_restarted_without_its_data_accepts_a_running_client() -> None:
    with KorvetProcess() as broker:
        async with open_client(broker.bootstrap_servers) as client:
            await client.create_topic("t", partitions=1)
            await client.produce("t", [Record(b"0")])
            broker.kill()
            broker.start()
            await client.create_topic("t", partitions=1)
            produced = [await client.produce("t", [Record(b"%d" % n)]) for n in range(1, 3)]

    assert [[0], [1]] == [[record.offset for record in records] for records in produced]


async def test_sequence_error_after_a_lost_response_is_raised() -> None:
    async with serving() as broker, open_client(broker.bootstrap_servers) as client:
        await client.create_topic("t", partitions=1)
        await client.produce("t", [Record(b"0")])
        dropped = broker.faults.add(Drop("after", api="Produce", count=1))

        async def refuse_the_repetition() -> None:
            while not dropped.hits:  # noqa: ASYNC110  faults have no event for it
                await trio.sleep(0.001)
            broker.faults.add(Error("OUT_OF_ORDER_SEQUENCE_NUMBER", api="Produce", count=1))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refuse_the_repetition)
                try:
                    await client.produce("t", [Record(b"1")])
                except OutOfOrderSequenceNumber as raised:
                    error = raised
        assert error.retriable is False
        await client.produce("t", [Record(b"2")])
        values = [record.value for record in await broker.records("t")]

    assert [b"0", b"1", b"2"] == values
