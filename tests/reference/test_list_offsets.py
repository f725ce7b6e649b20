"""The statements of the reference page "List Offsets"."""

from __future__ import annotations

from korvet.protocol.errors import ErrorCode
from korvet.storage.interface import TopicPartition
from korvet.testing.records import Record, numbered
from tests.handlers.support import reconfigure
from tests.reference.conversation import BITS, EARLIEST, LATEST, Conversation, list_offsets
from tests.reference.places import BY_TIME_ON_REDIS, DENSE, ON_REDIS

ORDERS = [TopicPartition("orders", number) for number in range(3)]
FIRST_MS = 1_234_567_890_000


@DENSE
async def test_one_request_finds_earliest_latest_and_a_timestamp(broker: Conversation) -> None:
    """The page answers leader epoch -1; the broker answers 0, by which Kafka's clients notice a truncated log."""
    await broker.create(partitions=3)
    for tp in ORDERS:
        await broker.produce(*(Record(b"v", timestamp=FIRST_MS + 20 * number) for number in range(44)), tp=tp)
    timestamps = dict(zip(ORDERS, (EARLIEST, LATEST, FIRST_MS + 490), strict=True))
    response = await broker.client.ask(list_offsets(timestamps), 7)
    found = [
        (each.partition_index, each.error_code, each.timestamp, each.offset, each.leader_epoch)
        for each in response.topics[0].partitions
    ]

    assert [(0, 0, FIRST_MS, 0, 0), (1, 0, -1, 44, 0), (2, 0, FIRST_MS + 500, 25, 0)] == found
    assert 0 == response.throttle_time_ms


@BY_TIME_ON_REDIS
async def test_earliest_is_the_offset_of_the_first_entry_id_with_its_timestamp_field(
    broker: Conversation,
) -> None:
    broker.add("1234567890123-0", 1_234_567_890_000)
    broker.add("1234567890999-5", 1_234_567_890_900)
    await broker.create()

    assert (0, 1_234_567_890_123 << BITS | 0, 1_234_567_890_000) == await broker.list_offsets(EARLIEST)


async def test_earliest_is_the_log_start_after_the_first_record(broker: Conversation) -> None:
    """The page takes the first entry's ID; the log of a new topic begins at its creation, as in Kafka at 0."""
    await broker.create()
    start = await broker.offset(EARLIEST)
    appended = await broker.produce(*numbered(2, timestamp=FIRST_MS))

    assert (0, start, FIRST_MS) == await broker.list_offsets(EARLIEST)
    assert start == appended.log_start_offset <= appended.base_offset


async def test_earliest_and_latest_of_an_empty_partition_have_no_timestamp(broker: Conversation) -> None:
    """The page answers offset 0; under `timestamp`, the log begins at the time of the topic's creation instead."""
    await broker.create()
    start = await broker.offset(LATEST)

    assert [(0, start, -1)] * 2 == [await broker.list_offsets(each) for each in (EARLIEST, LATEST)]
    assert (start == 0) == (broker.place.mapping == "dense")


async def test_topic_that_does_not_exist_is_an_error(broker: Conversation) -> None:
    """The page answers offset 0 and timestamp -1; Kafka's clients rely on the error."""
    found = [await broker.list_offsets(timestamp) for timestamp in (EARLIEST, LATEST, FIRST_MS)]

    assert [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)] * 3 == found


@BY_TIME_ON_REDIS
async def test_latest_is_the_offset_after_that_of_the_last_entry(broker: Conversation) -> None:
    """The page's commands return the last entry's own offset; its example, and Kafka, the next to be written."""
    broker.add("1234567890123-0", 1_234_567_890_000)
    broker.add("1234567890999-5", 1_234_567_890_900)
    await broker.create()

    assert (0, (1_234_567_890_999 << BITS | 5) + 1, -1) == await broker.list_offsets(LATEST)


async def test_latest_is_the_next_offset_to_be_written(broker: Conversation) -> None:
    await broker.create()
    base_offset = (await broker.produce(*numbered(44))).base_offset

    assert (0, base_offset + 44, -1) == await broker.list_offsets(LATEST)


@BY_TIME_ON_REDIS
async def test_timestamp_finds_the_first_entry_at_or_after_it(broker: Conversation) -> None:
    broker.add("1234567889000-0", 1_234_567_889_000)
    broker.add("1234567890500-0", 1_234_567_890_500)
    await broker.create()
    expected = (0, 1_234_567_890_500 << BITS | 0, 1_234_567_890_500)

    assert expected == await broker.list_offsets(1_234_567_890_000)
    assert expected == await broker.list_offsets(1_234_567_890_500)


@ON_REDIS
async def test_timestamps_are_compared_with_the_timestamp_field_instead_of_the_id(
    broker: Conversation,
) -> None:
    """The page compares IDs (XREAD after `TIME-0`), which would also exclude an entry with just that ID."""
    broker.add("2000-0", 100)
    broker.add("3000-0", 300)
    await broker.create()

    assert 300 == (await broker.list_offsets(200))[2]
    assert (0, -1, -1) == await broker.list_offsets(2000)


async def test_timestamp_without_a_record_is_offset_minus_1(broker: Conversation) -> None:
    """The page answers offset 0, which Kafka's clients take for a record; -1 is "none" to them."""
    await broker.create()
    await broker.produce(Record(b"v", timestamp=FIRST_MS))

    assert (0, -1, -1) == await broker.list_offsets(FIRST_MS + 1)


async def test_timestamp_without_a_record_is_offset_0_when_configured(broker: Conversation) -> None:
    await broker.create()
    reconfigure(broker.server.broker, list_offsets_unknown="zero")
    of_an_empty_log = await broker.list_offsets(FIRST_MS)
    base_offset = (await broker.produce(Record(b"v", timestamp=FIRST_MS))).base_offset

    assert (0, 0, -1) == of_an_empty_log
    assert (0, 0, -1) == await broker.list_offsets(FIRST_MS + 1)
    assert (0, base_offset, FIRST_MS) == await broker.list_offsets(FIRST_MS)
