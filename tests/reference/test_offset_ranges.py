"""The statements of the reference page on the offset range of a partition in Kafka."""

from __future__ import annotations

import pytest

from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.testing.records import Record, numbered
from tests.reference.conversation import EARLIEST, LATEST, Conversation
from tests.talk import connect, port_of


async def test_minus_2_is_the_log_start_and_minus_1_the_log_end(
    broker: Conversation,
) -> None:
    await broker.create()
    await broker.produce(*numbered(5))
    beginning, end = await broker.offset(-2), await broker.offset(-1)
    error_codes, values = [], []
    for offset in (beginning, end):
        error_code, records = await broker.fetch(offset)
        error_codes.append(error_code)
        values.append([record.value for record in records])

    assert [0, 0] == error_codes
    assert [[b"0", b"1", b"2", b"3", b"4"], []] == values


async def test_earliest_has_the_timestamp_of_the_first_record(broker: Conversation) -> None:
    """Kafka answers no timestamp (-1); the page "List Offsets" answers the first message's, which this follows."""
    await broker.create()
    await broker.produce(Record(b"v", timestamp=1_234_567_890_000))

    assert 1_234_567_890_000 == (await broker.list_offsets(EARLIEST))[2]


async def test_last_stable_offset_is_the_high_watermark(broker: Conversation) -> None:
    """Without transactions nothing is undecided, so both isolation levels have the same end."""
    await broker.create()
    await broker.produce(*numbered(5))
    read_uncommitted, read_committed = [
        await broker.list_offsets(LATEST, isolation_level=level) for level in (0, 1)
    ]

    assert read_uncommitted == read_committed


@pytest.mark.parametrize(
    "timestamp, index, found", [(0, 0, 100), (100, 0, 100), (101, 1, 300), (250, 1, 300), (301, 3, 500)]
)
async def test_timestamp_finds_the_lowest_offset_at_or_after_it(
    broker: Conversation, timestamp: int, index: int, found: int
) -> None:
    await broker.create(retention_ms="-1")
    first = await broker.produce(Record(timestamp=100), Record(timestamp=300))
    second = await broker.produce(*(Record(timestamp=each) for each in (200, 500, 400)))
    offsets = [first.base_offset, first.base_offset + 1, *range(second.base_offset, second.base_offset + 3)]

    assert (0, offsets[index], found) == await broker.list_offsets(timestamp)


async def test_leader_in_the_metadata_answers_list_offsets(broker: Conversation) -> None:
    await broker.create()
    metadata = await broker.client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 9)
    leader_id = metadata.topics[0].partitions[0].leader_id
    (leader,) = [each for each in metadata.brokers if each.node_id == leader_id]
    async with connect(broker.server, leader.host, leader.port) as client:
        broker.client = client

        assert await broker.offset(EARLIEST) == await broker.offset(LATEST)
    assert port_of(broker.server) == leader.port
