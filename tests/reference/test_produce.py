"""The statements of the reference page "Send Messages"."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import ErrorCode
from korvet.storage.offsets import TimestampOffsets, offset_mapper
from korvet.testing.records import Producer, Record, batch, numbered
from tests.handlers.support import produce_request
from tests.reference.conversation import BITS, EARLIEST, LATEST, ORDERS, STREAM, Conversation
from tests.reference.places import BY_TIME, ON_REDIS, RECORDS_ON_REDIS

ORDER_123 = Record(
    b'{"product": "widget", "quantity": 5}',
    b"order-123",
    1_234_567_890_000,
    (("source", b"web"), ("version", b"1.0")),
)
ORDER_124 = Record(b'{"product": "gadget", "quantity": 3}', b"order-124", 1_234_567_891_000)


def test_offsets_and_entry_ids_are_converted_without_a_lookup_table() -> None:
    """The page writes 1264197008485888 for this offset; its own formula gives another number."""
    mapper = TimestampOffsets(10)
    offset = 1_234_567_890_123 << 10 | 5

    assert offset == mapper.offset(b"1234567890123-5")
    assert b"1234567890123-5" == mapper.entry_id(offset)
    assert f"{offset >> 10}-{offset & ((1 << 10) - 1)}".encode() == mapper.entry_id(offset)
    assert b"1234567890123-0" == mapper.entry_id(1_264_197_519_485_952)


@pytest.mark.parametrize("acks", [1, -1])
async def test_base_offset_of_the_batch_is_returned(broker: Conversation, acks: int) -> None:
    """The page answers `log_append_time` always; in Kafka it is -1 if producers set the timestamps."""
    await broker.create(retention_ms="-1")
    start = await broker.offset(LATEST)
    response = await broker.client.ask(
        produce_request({ORDERS: bytes(batch([ORDER_123, ORDER_124]).buffer)}, acks=acks), 9
    )
    appended = response.responses[0].partition_responses[0]
    error_code, records = await broker.fetch(appended.base_offset)

    assert (0, ErrorCode.NONE, -1, start) == (
        response.throttle_time_ms,
        appended.error_code,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )
    assert (ErrorCode.NONE, [(appended.base_offset, ORDER_123), (appended.base_offset + 1, ORDER_124)]) == (
        error_code,
        [(record.offset, Record(*record[1:])) for record in records],
    )


async def test_acks_0_gets_no_response(broker: Conversation) -> None:
    await broker.create()
    start = await broker.offset(LATEST)
    request = produce_request({ORDERS: bytes(batch(numbered(2)).buffer)}, acks=0)
    await broker.client.send(broker.client.frame_of(request, 9))
    appended = await broker.produce(*numbered(1))  # would read the other response, if there was one

    assert ErrorCode.NONE == appended.error_code
    assert appended.base_offset >= start + 2


@BY_TIME
async def test_log_append_time_equals_the_time_in_the_offset(broker: Conversation) -> None:
    await broker.create(message_timestamp_type="LogAppendTime")
    appended = await broker.produce(ORDER_123)

    assert appended.log_append_time_ms == appended.base_offset >> BITS


@RECORDS_ON_REDIS
async def test_record_becomes_an_entry_with_its_fields(broker: Conversation) -> None:
    await broker.create(retention_ms="-1")
    await broker.produce(ORDER_123, ORDER_124)

    assert [
        {
            "key": "order-123",
            "value": '{"product": "widget", "quantity": 5}',
            "timestamp": "1234567890000",
            "header.source": "web",
            "header.version": "1.0",
        },
        {
            "key": "order-124",
            "value": '{"product": "gadget", "quantity": 3}',
            "timestamp": "1234567891000",
        },
    ] == [fields for _, fields in broker.plain.xrange(STREAM)]


@ON_REDIS
async def test_offsets_are_derived_from_entry_ids(broker: Conversation) -> None:
    """The page lets XADD choose the IDs (`*`); the broker's script does, since a batch's are to be consecutive."""
    await broker.create()
    base_offset = (await broker.produce(*numbered(2))).base_offset
    topic = (await broker.server.broker._storage.topics())["orders"]
    ids = [entry_id.encode() for entry_id, _ in broker.plain.xrange(STREAM)]
    offsets = [base_offset, base_offset + 1] if broker.place.layout == "record" else [base_offset + 1]

    assert offsets == [offset_mapper(topic.config).offset(entry_id) for entry_id in ids]


async def test_large_batch_is_written_completely(broker: Conversation) -> None:
    """The page splits large batches into chunks, of which a reader, or a crash, could leave a part."""
    await broker.create()
    base_offset = (await broker.produce(*numbered(3_000))).base_offset
    _, records = await broker.fetch(base_offset)

    assert list(range(base_offset, base_offset + 3_000)) == [record.offset for record in records]


async def test_duplicate_batch_is_detected_and_not_written(broker: Conversation) -> None:
    await broker.create()
    producer = Producer(7)
    first, again = [await broker.produce(produced=batch(numbered(2), producer=producer)) for _ in range(2)]

    assert (ErrorCode.NONE, first.base_offset) == (again.error_code, again.base_offset)
    assert first.base_offset + 2 == await broker.offset(LATEST)


async def test_retention_is_applied_while_writing(broker: Conversation) -> None:
    await broker.create(retention_bytes="1000000")
    appended = [await broker.produce(Record(b"x" * 100_000)) for _ in range(30)]
    first, last = appended[0].base_offset, appended[-1]

    assert first < last.log_start_offset == await broker.offset(EARLIEST)
    assert (ErrorCode.OFFSET_OUT_OF_RANGE, []) == await broker.fetch(first)
    assert 10 <= len((await broker.fetch(last.log_start_offset))[1]) <= 15
