"""Plain Redis clients use a partition's stream: they add and remove entries."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import pytest
import redis
from attrs import define

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import OffsetAndTimestamp, Storage, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import (
    T0,
    Producer,
    Record,
    StoredRecord,
    append,
    batch,
    batches_of,
    numbered,
    read,
    records_from,
)
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

KEY = "korvet:orders:0"
TP = TopicPartition("orders", 0)


@define
class Shared:
    """A partition that a broker serves, and that others write to by hand."""

    storage: Storage
    client: redis.Redis
    is_dense: bool

    def add(self, entry_id: str, **fields: bytes | str | int) -> bytes:
        added: bytes = self.client.execute_command("XADD", KEY, entry_id, *sum(fields.items(), ()))
        return added

    async def records(self) -> list[StoredRecord]:
        return await records_from(self.storage, TP)

    async def values(self) -> list[bytes | None]:
        return [record.value for record in await self.records()]

    async def append(self, *values: bytes, **options: int) -> int:
        records = [Record(value, **options) for value in values]
        return (await append(self.storage, TP, records)).base_offset

    def offset(self, entry_id: bytes) -> int:
        ms, sequence = map(int, entry_id.split(b"-"))
        return ms - 1 if self.is_dense else (ms << 10) + sequence

    def entry_id(self, offset: int) -> str:
        return f"{offset + 1}-0" if self.is_dense else f"{offset >> 10}-{offset & 1023}"

    def next_id(self, ahead: int = 0) -> str:
        """Return the ID of the next offset after the last entry, plus `ahead`."""
        last: bytes = self.client.xinfo_stream(KEY)["last-generated-id"]
        return self.entry_id(self.offset(last) + 1 + ahead)


KINDS = [
    pytest.param({"storage.layout": layout, "offset.mapping": mapping}, id=f"{layout}-{mapping}")
    for layout in ("record", "batch")
    for mapping in ("timestamp", "dense")
]


@pytest.fixture(params=KINDS)
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    chosen: dict[str, str] = request.param
    return chosen


@pytest.fixture
async def shared(
    redis_server: RedisServer, client: redis.Redis, settings: dict[str, str]
) -> AsyncIterator[Shared]:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, settings)
        yield Shared(storage, client, settings["offset.mapping"] == "dense")


# --- Entries that others added ------------------------------------------------------------------------------


async def test_manual_entry_with_record_fields_is_read_as_that_record(shared: Shared) -> None:
    await shared.append(b"first")
    entry_id = shared.add(shared.next_id(), key="k", value="v", timestamp=T0, **{"header.h": "x"})
    await shared.append(b"last")
    found = await shared.records()

    assert [b"first", b"v", b"last"] == [record.value for record in found]
    assert StoredRecord(shared.offset(entry_id), b"v", b"k", T0, (("h", b"x"),)) == found[1]


async def test_entry_without_timestamp_has_the_time_of_its_id(shared: Shared) -> None:
    entry_id = shared.add("*", value="v")
    (record,) = await shared.records()

    assert StoredRecord(shared.offset(entry_id), b"v", None, int(entry_id.split(b"-")[0])) == record


@pytest.mark.parametrize("nonsense", ["", "yesterday", "1e9", "+5", " 5", "9223372036854775808", "٣"])
async def test_timestamp_that_is_not_a_number_is_ignored(shared: Shared, nonsense: str) -> None:
    entry_id = shared.add("*", value="v", timestamp=nonsense)
    (record,) = await shared.records()
    time = int(entry_id.split(b"-")[0])

    assert record.timestamp == time
    assert OffsetAndTimestamp(record.offset, time) == await shared.storage.seek_ts(TP, time)
    assert OffsetAndTimestamp(record.offset, time) == await shared.storage.seek_max_ts(TP)


async def test_other_fields_become_a_json_value_without_a_value_field(shared: Shared) -> None:
    shared.add("*", key="k", name="Ada", city="London", **{"header.h": "x"})
    (record,) = await shared.records()

    assert {"name": "Ada", "city": "London"} == json.loads(record.value or b"")
    assert b"k" == record.key
    assert (("h", b"x"),) == record.headers


async def test_value_is_null_without_a_value_field_and_other_fields(shared: Shared) -> None:
    shared.add("*", key="k", timestamp=T0)
    (record,) = await shared.records()

    assert record.value is None
    assert b"k" == record.key


async def test_invalid_utf8_fields_become_json(shared: Shared) -> None:
    shared.add("*", name=b"\xff\xfe", quote='"\n')
    (record,) = await shared.records()

    assert {"name": "\ufffd\ufffd", "quote": '"\n'} == json.loads(record.value or b"")


async def test_every_operation_sees_manually_added_entries(shared: Shared) -> None:
    start = (await shared.storage.latest(TP)).log_start_offset
    await shared.append(b"a", b"b", timestamp=T0)
    entry_id = shared.add(shared.next_id(5), value="c", timestamp=T0 + 50)
    offset = shared.offset(entry_id)
    with shared.storage.watch([TP]):
        bounds = await shared.storage.latest(TP)

    assert bounds.high_watermark == offset + 1
    assert OffsetAndTimestamp(offset, T0 + 50) == await shared.storage.seek_ts(TP, T0 + 1)
    assert OffsetAndTimestamp(offset, T0 + 50) == await shared.storage.seek_max_ts(TP)
    assert OffsetAndTimestamp(start, T0) == await shared.storage.earliest(TP)
    assert offset + 1 == (await shared.storage.epoch_end(TP, 0)).end_offset
    assert offset == await shared.storage.truncate_before(TP, offset)
    assert [b"c"] == await shared.values()


async def test_appends_continue_after_manually_added_entries(shared: Shared) -> None:
    await shared.append(b"0")
    for number in range(1, 20, 2):
        shared.add(shared.next_id(number % 3), value=str(number))
        await shared.append(b"%d" % (number + 1))
    found = await shared.records()

    assert [b"%d" % number for number in range(20 + 1)] == [record.value for record in found]
    assert [record.offset for record in found] == sorted({record.offset for record in found})


async def test_manually_added_entries_do_not_affect_idempotent_producers(shared: Shared) -> None:
    first = await append(shared.storage, TP, numbered(3), producer=Producer(7))
    shared.add(shared.next_id(), value="x")
    again = await append(shared.storage, TP, numbered(3), producer=Producer(7))
    await append(shared.storage, TP, numbered(3, first=3), producer=Producer(7, sequence=3))

    assert again.duplicate
    assert first.base_offset == again.base_offset
    assert [b"0", b"1", b"2", b"x", b"3", b"4", b"5"] == await shared.values()


async def test_thousands_of_manually_added_entries_are_counted(shared: Shared) -> None:
    await shared.append(b"first")
    first = shared.offset(shared.next_id().encode())
    with shared.client.pipeline(transaction=False) as pipeline:
        for number in range(6000):
            pipeline.xadd(
                KEY, {"value": f"{number}", "timestamp": T0 + number}, shared.entry_id(first + number)
            )
        pipeline.execute()
    last = await shared.append(b"last")
    found = await shared.records()

    assert last >= first + 6000
    assert [b"first", *(b"%d" % n for n in range(6000)), b"last"] == [record.value for record in found]
    for number in (0, 1, 777, 5999):
        assert (
            await shared.storage.seek_ts(TP, T0 + number)
            in [
                OffsetAndTimestamp(record.offset, record.timestamp)
                for record in found
                if record.timestamp >= T0 + number
            ][:1]
        )


async def test_large_manually_added_entries_are_read_in_pieces(shared: Shared) -> None:
    for number in range(30):
        shared.client.xadd(KEY, {"value": bytes([number]) * 500_000}, shared.entry_id(1000 + number))
    found = await records_from(shared.storage, TP, max_bytes=1_000_000)

    assert [bytes([number]) * 500_000 for number in range(30)] == [record.value for record in found]


async def test_ids_without_an_offset_are_skipped_and_logged_once(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    await shared.append(b"first")
    ms = int(shared.next_id(2000).split("-")[0]) + 10
    shared.add(f"{ms}-{0 if shared.is_dense else 1023}", value="has an offset")
    shared.add(f"{ms}-{1 if shared.is_dense else 1024}", value="has none")
    shared.add(f"{ms}-5000", value="has none")
    await shared.append(b"last")
    with caplog.at_level(logging.WARNING):
        values = [await shared.values() for _ in range(3)]

    assert [[b"first", b"has an offset", b"last"]] * 3 == values
    assert 1 == len([each for each in caplog.records if "no offset" in each.getMessage()])
    assert b"2" == shared.client.hget("{korvet:orders:0}:$state", "skipped")


async def test_stream_of_ids_without_an_offset_is_an_empty_log(shared: Shared) -> None:
    shared.add("5000-5000", value="has none")
    bounds = await shared.storage.latest(TP)
    earliest = await shared.storage.earliest(TP)

    assert [] == await shared.values()
    assert OffsetAndTimestamp(bounds.log_start_offset, -1) == earliest
    assert await shared.storage.seek_ts(TP, 0) is None
    assert await shared.storage.seek_max_ts(TP) is None


async def test_id_beyond_all_offsets_does_not_stop_reads(shared: Shared) -> None:
    await shared.append(b"first")
    shared.add("18446744073709551615-0", value="nobody can follow")
    with pytest.raises(KafkaStorageError):
        await shared.append(b"last")

    assert [b"first"] == await shared.values()
    shared.client.xdel(KEY, "18446744073709551615-0")
    assert [b"first"] == await shared.values()


async def test_existing_stream_is_adopted(
    redis_server: RedisServer, client: redis.Redis, settings: dict[str, str]
) -> None:
    is_dense = settings["offset.mapping"] == "dense"
    for number in range(2500):
        client.xadd(KEY, {"value": f"{number}"}, f"{number + 1}-0" if is_dense else f"{1000 + number}-7")
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, settings)
        shared = Shared(storage, client, is_dense)
        earliest = await storage.earliest(TP)
        last = await shared.append(b"last")

        assert earliest.offset == shared.offset(b"1-0" if is_dense else b"1000-7")
        assert last > shared.offset(b"2500-0" if is_dense else b"3499-7")
        assert [*(b"%d" % number for number in range(2500)), b"last"] == await shared.values()


async def test_existing_empty_stream_keeps_its_end(
    redis_server: RedisServer, client: redis.Redis, settings: dict[str, str]
) -> None:
    client.xadd(KEY, {"value": "x"}, "9000-0")
    client.xtrim(KEY, maxlen=0)
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, settings)
        shared = Shared(storage, client, settings["offset.mapping"] == "dense")
        bounds = await storage.latest(TP)
        offset = await shared.append(b"v")

        assert bounds.high_watermark == shared.offset(b"9000-0") + 1
        assert offset >= bounds.high_watermark


# --- Entries that others removed ------------------------------------------------------------------------------


async def test_deleted_entries_are_skipped(shared: Shared) -> None:
    offsets = [await shared.append(b"%d" % number, timestamp=T0 + number) for number in range(10)]
    for number in (0, 4, 9):
        shared.client.xdel(KEY, shared.entry_id(offsets[number]))
    values = [b"%d" % number for number in range(10) if number not in (0, 4, 9)]

    assert values == await shared.values()
    assert offsets[9] + 1 == (await shared.storage.latest(TP)).high_watermark
    assert offsets[1] == (await shared.storage.earliest(TP)).offset
    assert OffsetAndTimestamp(offsets[5], T0 + 5) == await shared.storage.seek_ts(TP, T0 + 4)
    assert await shared.storage.seek_ts(TP, T0 + 9) is None
    assert OffsetAndTimestamp(offsets[8], T0 + 8) == await shared.storage.seek_max_ts(TP)
    await shared.append(b"last")
    assert [*values, b"last"] == await shared.values()


async def test_log_start_follows_externally_trimmed_entries(shared: Shared) -> None:
    for number in range(40):
        await shared.append(*[b"%d" % number + b"x" * 3000] * 3, timestamp=T0 + number)
    shared.client.xtrim(KEY, maxlen=10, approximate=False)
    kept = await shared.records()
    bounds = await shared.storage.latest(TP)
    await shared.append(b"last")

    assert bounds.log_start_offset == kept[0].offset
    assert await records_from(shared.storage, TP, 0) == await shared.records()
    assert len(kept) == (10 if shared.client.hget("korvet:$topics", "orders").find(b'"record"') > 0 else 30)
    assert kept[0].offset == (await shared.storage.earliest(TP)).offset
    assert OffsetAndTimestamp(kept[0].offset, kept[0].timestamp) == await shared.storage.seek_ts(TP, T0)
    assert len(kept) + 1 == len(await shared.records())


async def test_only_the_deletion_of_the_first_entry_advances_the_log_start(shared: Shared) -> None:
    start = (await shared.storage.latest(TP)).log_start_offset
    offsets = [await shared.append(b"%d" % number) for number in range(10)]
    starts = []
    for number in (5, 9, 0, 2, 1):
        shared.client.xdel(KEY, shared.entry_id(offsets[number]))
        starts.append((await shared.storage.earliest(TP)).offset)

    assert [start, start, offsets[1], offsets[1], offsets[3]] == starts
    assert offsets[3] == await shared.storage.truncate_before(TP, offsets[2])


async def test_state_of_an_earlier_version_keeps_its_log_start(shared: Shared) -> None:
    offsets = [await shared.append(b"%d" % number) for number in range(4)]
    shared.client.hdel("{korvet:orders:0}:$state", "earliest", "first")
    before = await shared.storage.earliest(TP)
    shared.client.xdel(KEY, shared.entry_id(offsets[3]))
    unknown = await shared.storage.earliest(TP)
    shared.client.xdel(KEY, shared.entry_id(offsets[0]))
    after = await shared.storage.earliest(TP)

    assert [before.offset, unknown.offset, after.offset] == [0, 0, offsets[1]]
    assert [b"1", b"2"] == await shared.values()


async def test_topic_of_an_earlier_version_starts_at_0(
    redis_server: RedisServer, client: redis.Redis, settings: dict[str, str]
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, settings)
    stored: bytes = client.hget("korvet:$topics", "orders")  # type: ignore[assignment]
    content = json.loads(stored)
    del content["created_ms"]
    client.hset("korvet:$topics", "orders", json.dumps(content))
    client.delete("{korvet:orders:0}:$state")  # which the first request about the partition created
    async with open_redis_storage(redis_server.url) as storage:
        bounds = await storage.latest(TP)
        await append(storage, TP, [Record(b"v")])
        earliest = await storage.earliest(TP)

    assert [0, 0, 0] == [bounds.log_start_offset, bounds.high_watermark, earliest.offset]


async def test_entries_with_ids_before_the_topic_creation_start_an_empty_log(shared: Shared) -> None:
    await shared.storage.latest(TP)
    entry_id = shared.add("1000-0", value="v")

    assert [b"v"] == await shared.values()
    assert (await shared.storage.latest(TP)).log_start_offset == (
        0 if shared.is_dense else shared.offset(entry_id)
    )
    assert await shared.append(b"w") > shared.offset(entry_id)
    assert [b"v", b"w"] == await shared.values()


async def test_manually_deleted_stream_continues_after_its_end(shared: Shared) -> None:
    last = await shared.append(b"0", b"1", timestamp=T0)
    shared.client.delete(KEY)
    gone = await shared.values()
    bounds = await shared.storage.latest(TP)
    again = await shared.append(b"2", timestamp=T0)

    assert [] == gone
    assert bounds.high_watermark == last + 2
    assert again >= last + 2
    assert [b"2"] == await shared.values()
    assert OffsetAndTimestamp(again, T0) == await shared.storage.seek_ts(TP, 0)


async def test_equal_numbers_of_added_and_deleted_entries_are_detected(shared: Shared) -> None:
    """The length of the stream is then as expected."""
    offset = await shared.append(b"old", timestamp=T0)
    shared.client.xdel(KEY, shared.entry_id(offset))
    shared.add(shared.next_id(), value="new", timestamp=T0)
    await shared.append(b"last")

    assert [b"new", b"last"] == await shared.values()


async def test_appends_continue_after_an_entry_was_added_and_deleted(shared: Shared) -> None:
    """Its ID is above all that is there; Redis refuses everything below."""
    await shared.append(b"first")
    entry_id = shared.add(shared.next_id(500_000), value="x")
    shared.client.xdel(KEY, entry_id)
    offset = await shared.append(b"a", b"b")
    await shared.append(b"c")

    assert offset > shared.offset(entry_id)
    assert [b"first", b"a", b"b", b"c"] == await shared.values()


async def test_lost_state_is_rebuilt(shared: Shared) -> None:
    await shared.append(b"0", b"1", timestamp=T0)
    for key in ("$state", "$index", "$summary", "$producers"):
        shared.client.delete(f"{{{KEY}}}:{key}")
    await shared.append(b"2", timestamp=T0 + 1)
    found = await shared.records()

    assert [b"0", b"1", b"2"] == [record.value for record in found]
    assert OffsetAndTimestamp(found[2].offset, T0 + 1) == await shared.storage.seek_ts(TP, T0 + 1)


async def test_flushed_server_has_no_topics(shared: Shared) -> None:
    await shared.append(b"0")
    shared.client.flushall()
    results = await shared.storage.append({TP: batch(numbered(1))})

    assert await shared.storage.topic("orders") is None
    assert str(results[TP])
    assert 0 == shared.client.exists(KEY)


# --- What plain clients see ---------------------------------------------------------------------------------


async def test_plain_clients_see_records_as_fields(redis_server: RedisServer, client: redis.Redis) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"offset.mapping": "dense"})
        headers = (("source", b"web"), ("source", b"app"), ("none", None))
        await append(storage, TP, [Record(b"v", b"k", T0, headers), Record(None, b"gone", T0 + 1)])
        await append(storage, TP, [Record(b"w", None, T0 + 2)], producer=Producer(7, epoch=3))

    entries = [
        (entry_id, fields) for entry_id, fields in client.execute_command("XRANGE", KEY, "-", "+", keys=[KEY])
    ]
    assert [b"1-0", b"2-0", b"3-0"] == [entry_id for entry_id, _ in entries]
    assert {b"key": b"gone", b"timestamp": b"%d" % (T0 + 1)} == entries[1][1]
    assert {b"value": b"w", b"timestamp": b"%d" % (T0 + 2), b"$producer": b"7:3"} == entries[2][1]
    assert b"app" == entries[0][1][b"header.source"]


async def test_rebuilt_batches_use_the_codec_of_the_topic(redis_server: RedisServer) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed", "producer"):
            tp = TopicPartition(codec, 0)
            await storage.create_topic(codec, 1, {"compression.type": codec})
            await append(storage, tp, [Record(b"x" * 1000) for _ in range(100)])
            found = await read(storage, tp, 0)
            names = {each.compression.name.lower() for each in batches_of(found)}

            assert {"none" if codec in ("uncompressed", "producer") else codec} == names
            assert 100 == len(await records_from(storage, tp))
