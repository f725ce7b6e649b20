"""Reading records forward and backward within a budget."""

from __future__ import annotations

from collections import Counter

import pytest

from korvet.client import Client, ConsumedRecord, Record, TopicPartition
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from korvet.web.reading import Budget, Found, Positions, backward, everything, forward

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def fill(client: Client, count: int, *, gap_ms: int = 1) -> None:
    """Produce records 0, 1, 2, … in turn to two partitions, with increasing timestamps."""
    await client.produce(
        "t",
        [
            Record(str(i).encode(), partition=i % 2, timestamp=1_700_000_000_000 + gap_ms * i)
            for i in range(count)
        ],
    )


def numbers(found: Found) -> list[int]:
    return [int(record.value) for record in found.records]


async def test_reading_forward_continues_where_it_stopped(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await fill(client, 20)

    first = await forward(client, {T0: 0, T1: 0}, {T0: 10, T1: 10}, 7, everything, Budget())
    second = await forward(client, first.positions, {T0: 10, T1: 10}, 100, everything, Budget())

    assert list(range(20)) == numbers(first) + numbers(second)
    assert {} == second.positions


async def test_reading_backward_continues_where_it_stopped(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await fill(client, 20)
    starts = {T0: 0, T1: 0}

    first = await backward(client, starts, {T0: 10, T1: 10}, 7, everything, Budget())
    second = await backward(client, starts, first.positions, 100, everything, Budget())

    assert list(range(19, -1, -1)) == numbers(first) + numbers(second)
    assert {} == second.positions


async def test_newest_records_of_each_partition_come_first_in_one_millisecond(client: Client) -> None:
    await client.create_topic("t", partitions=2, settings={"offset.mapping": "dense"})
    at_once = [Record(b"%d" % n, partition=n // 9, timestamp=1_700_000_000_000) for n in range(10)]
    await client.produce("t", at_once)
    starts, ends = {T0: 0, T1: 0}, {T0: 9, T1: 1}

    first = await backward(client, starts, ends, 3, everything, Budget())
    second = await backward(client, starts, first.positions, 100, everything, Budget())

    assert [8, 9, 7] == numbers(first)
    assert list(range(6, -1, -1)) == numbers(second)


@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
async def test_the_newest_records_are_found_whatever_the_offsets_mean(client: Client, mapping: str) -> None:
    await client.create_topic("t", partitions=1, settings={"offset.mapping": mapping})
    for i in range(5):
        await client.produce(
            "t",
            [Record(str(2 * i + n).encode(), timestamp=1_700_000_000_000 + 3_600_000 * i) for n in range(2)],
        )
    end = (await client.list_offsets({T0: -1}))[T0].offset
    start = (await client.list_offsets({T0: -2}))[T0].offset

    found = await backward(client, {T0: start}, {T0: end}, 4, everything, Budget())

    assert [9, 8, 7, 6] == numbers(found)


async def test_a_search_ends_with_its_budget_and_continues(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await fill(client, 3000)
    ends = {T0: 1500, T1: 1500}

    def match(record: ConsumedRecord) -> bool:
        return record.value == b"2999"

    found = await forward(client, {T0: 0, T1: 0}, ends, 1, match, Budget(records=100))
    assert ([], True) == (found.records, found.is_cut_short)

    rest = await forward(client, found.positions, ends, 1, match, Budget())
    assert [2999] == numbers(rest)


async def test_a_backward_search_ends_with_its_budget_and_continues(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await fill(client, 3000)
    starts = {T0: 0, T1: 0}
    positions: Positions = {T0: 1500, T1: 1500}
    found = []

    for _ in range(20):
        answer = await backward(
            client, starts, positions, 1, lambda record: record.value == b"0", Budget(records=700)
        )
        found += answer.records
        positions = answer.positions
        if found or not positions:
            break

    assert [b"0"] == [record.value for record in found]


async def test_reading_from_before_the_start_of_the_log_begins_at_its_start(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await fill(client, 4)

    asked = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
    await client.request(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), DeleteRecordsResponse)

    found = await forward(client, {T0: 0, T1: 0}, {T0: 2, T1: 2}, 10, everything, Budget())

    assert [1, 2, 3] == numbers(found)


async def fill_one_millisecond(client: Client) -> None:
    """Produce 50 records to partition 0 and 3 to partition 1, all with the same timestamp."""
    for partition, count in ((0, 50), (1, 3)):
        records = [Record(b"%d" % i, partition=partition, timestamp=1_700_000_000_000) for i in range(count)]
        await client.produce("t", records)


@pytest.mark.parametrize("is_forward", [True, False])
async def test_a_page_has_records_of_each_partition_of_one_millisecond(
    client: Client, is_forward: bool
) -> None:
    await client.create_topic("t", partitions=2)
    await fill_one_millisecond(client)
    starts, ends = {T0: 0, T1: 0}, {T0: 50, T1: 3}

    if is_forward:
        found = await forward(client, starts, ends, 10, everything, Budget())
        rest = await forward(client, found.positions, ends, 100, everything, Budget())
    else:
        found = await backward(client, starts, ends, 10, everything, Budget())
        rest = await backward(client, starts, found.positions, 100, everything, Budget())

    assert Counter({0: 7, 1: 3}) == Counter(record.partition for record in found.records)
    places = [(record.partition, record.offset) for record in found.records + rest.records]
    assert 53 == len(places) == len({*places})
