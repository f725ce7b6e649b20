"""`offset.sequence.bits` through each verb of the storage: offset = (milliseconds << bits) | sequence."""

from __future__ import annotations

import pytest

from korvet.testing.records import T0, Record, StoredRecord, numbered
from tests.reference.conversation import EARLIEST, LATEST, ORDERS, STREAM, Conversation
from tests.reference.places import BY_TIME, BY_TIME_ON_REDIS

BITS = pytest.mark.parametrize("bits", [1, 10, 13, 16])


def entry_id(offset: int, bits: int) -> str:
    return f"{offset >> bits}-{offset & ((1 << bits) - 1)}"


@BITS
@BY_TIME
async def test_append_and_read(broker: Conversation, bits: int) -> None:
    await broker.create(offset_sequence_bits=str(bits), message_timestamp_type="LogAppendTime")
    appended = await broker.produce(*numbered(5))
    base_offset, time = appended.base_offset, appended.log_append_time_ms
    stored = [StoredRecord(base_offset + n, b"%d" % n, timestamp=time) for n in range(5)]

    assert time == base_offset >> bits
    assert [(0, stored[n:]) for n in range(5)] == [await broker.fetch(base_offset + n) for n in range(5)]


@BITS
@BY_TIME_ON_REDIS
async def test_append_assigns_entry_ids(broker: Conversation, bits: int) -> None:
    """A batch with more records than a millisecond has sequences continues in the next millisecond."""
    await broker.create(offset_sequence_bits=str(bits))
    base_offset = (await broker.produce(*numbered(5))).base_offset
    offsets = range(base_offset, base_offset + 5) if broker.place.layout == "record" else [base_offset + 4]

    assert [entry_id(offset, bits) for offset in offsets] == [each for each, _ in broker.plain.xrange(STREAM)]


@BITS
@BY_TIME
async def test_earliest_latest_and_seek_ts(broker: Conversation, bits: int) -> None:
    await broker.create(offset_sequence_bits=str(bits))
    empty = await broker.offset(LATEST)
    base_offset = (await broker.produce(*(Record(timestamp=T0 + n) for n in range(5)))).base_offset

    assert 0 == empty & ((1 << bits) - 1)
    assert (0, empty, T0) == await broker.list_offsets(EARLIEST)
    assert (0, base_offset + 5, -1) == await broker.list_offsets(LATEST)
    assert [(0, base_offset + n, T0 + n) for n in range(5)] == [
        await broker.list_offsets(T0 + n) for n in range(5)
    ]


@BITS
@BY_TIME
async def test_ack_and_committed(broker: Conversation, bits: int) -> None:
    await broker.create(offset_sequence_bits=str(bits))
    base_offset = (await broker.produce(*numbered(5))).base_offset
    await broker.commit({ORDERS: base_offset + 5})

    assert base_offset + 5 == await broker.committed()
    if broker.redis is not None:
        assert entry_id(base_offset + 4, bits) == broker.group()["last-delivered-id"]


@BITS
@BY_TIME_ON_REDIS
async def test_committed_follows_a_redis_group(broker: Conversation, bits: int) -> None:
    await broker.create(offset_sequence_bits=str(bits))
    base_offset = (await broker.produce(*numbered(5))).base_offset
    broker.plain.xgroup_create(STREAM, "my-group", "$")

    assert base_offset + 5 == await broker.committed()
