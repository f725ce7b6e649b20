"""Finding records by time on Redis: always what looking at every record would find, and quickly."""

from __future__ import annotations

import random
import time
from itertools import product
from statistics import median

import pytest
import redis
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.protocol.record_batch import RecordBatch, build_batch
from korvet.storage.interface import OffsetAndTimestamp, Storage, StorageDefaults, TopicPartition
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.records import T0, Record, StoredRecord, append, append_batch, records_from, stored
from tests.servers import VALKEY, RedisServer, on

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
KEY = "korvet:orders:0"
YEAR_2100 = 4_102_444_800_000
# Far from what doubles hold exactly, as nanoseconds are, and as far as they go.
NANOSECONDS = 1_700_000_000_000_000_001

times = st.one_of(
    st.integers(T0 - 20, T0 + 20),
    st.integers(NANOSECONDS - 300, NANOSECONDS + 300),
    st.sampled_from([-1, 0, YEAR_2100, 2**53, 2**53 + 1, 2**63 - 1]),
)
sizes = st.sampled_from([0, 10, 3_000, 30_000, 70_000])
appends = st.lists(st.tuples(st.lists(times, min_size=1, max_size=12), sizes), min_size=1, max_size=12)


@settings(max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
@given(appends, st.data())
@pytest.mark.parametrize("mapping", ["timestamp", "dense"])
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_seek_ts_finds_the_same_record_as_a_full_scan(
    redis_server: RedisServer,
    layout: str,
    mapping: str,
    batches: list[tuple[list[int], int]],
    data: st.DataObject,
) -> None:
    async def check() -> None:
        defaults = StorageDefaults(retention_check_interval_ms=0)
        async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
            settings = {"storage.layout": layout, "offset.mapping": mapping, "retention.ms": "-1"}
            await storage.create_topic("orders", 1, settings)
            wanted: list[StoredRecord] = []
            for timestamps, size in batches:
                records = [Record(b"x" * size, timestamp=timestamp) for timestamp in timestamps]
                wanted += stored(records, (await append(storage, TP, records)).base_offset)
            await compare(storage, wanted)

            first = data.draw(st.integers(0, len(wanted) - 1))
            await storage.truncate_before(TP, wanted[first].offset)
            await compare(storage, wanted[first:])

            with redis_server.client() as client:
                gone = data.draw(st.sets(st.integers(0, len(wanted) - 1)))
                kept = delete(client, wanted, gone, first, mapping=mapping, layout=layout)
            await compare(storage, kept)

    with redis_server.client() as client:
        client.flushall()
    trio.run(check)


def delete(
    client: redis.Redis, records: list[StoredRecord], gone: set[int], first: int, *, mapping: str, layout: str
) -> list[StoredRecord]:
    """Delete some entries by hand, those from `first` on that are left; in the batch layout none."""
    if layout == "batch":
        return records[first:]
    for index in gone:
        offset = records[index].offset
        client.xdel(KEY, f"{offset + 1}-0" if mapping == "dense" else f"{offset >> 10}-{offset & 1023}")
    return [record for index, record in enumerate(records) if index >= first and index not in gone]


async def compare(storage: Storage, records: list[StoredRecord]) -> None:
    """Ask for every time there is, and one more and one less."""
    assert await records_from(storage, TP) == records
    asked = {record.timestamp + step for record in records for step in (-1, 0, 1)}
    for timestamp in sorted(asked):
        if 0 <= timestamp < 2**63:
            assert first_at(records, timestamp) == await storage.seek_ts(TP, timestamp)
    largest = max(records, key=lambda each: each.timestamp, default=None)
    found = await storage.seek_max_ts(TP)
    assert (None if largest is None else OffsetAndTimestamp(largest.offset, largest.timestamp)) == found


def first_at(records: list[StoredRecord], timestamp: int) -> OffsetAndTimestamp | None:
    for record in records:
        if record.timestamp >= timestamp:
            return OffsetAndTimestamp(record.offset, record.timestamp)
    return None


@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_index_matches_the_remaining_records_after_retention(
    redis_server: RedisServer, layout: str
) -> None:
    chance = random.Random(layout)
    defaults = StorageDefaults(retention_check_interval_ms=0)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        settings = {"storage.layout": layout, "retention.bytes": "2000000", "retention.ms": "-1"}
        await storage.create_topic("orders", 1, settings)
        for number in range(60):
            sent = [
                Record(b"x" * 5_000, timestamp=T0 + 100 * number + chance.randrange(-500, 500))
                for _ in range(20)
            ]
            await append(storage, TP, sent)
        kept = await records_from(storage, TP)
        found = [await storage.seek_ts(TP, T0 + step) for step in range(0, 6500, 97)]
        with redis_server.client() as client:
            chunks = client.xlen(f"{{{KEY}}}:$index")

        assert 400 <= len(kept) <= 600
        assert [first_at(kept, T0 + step) for step in range(0, 6500, 97)] == found
        assert chunks < 100


@pytest.mark.slow
@on(VALKEY)
@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_seek_ts_in_ten_times_the_records_is_about_as_fast(
    redis_server: RedisServer, layout: str
) -> None:
    """Also where the first record says 2100."""
    async with open_redis_storage(redis_server.url) as storage:
        few = await filled(storage, TopicPartition("few", 0), layout, batches=20)
        many = await filled(storage, TopicPartition("many", 0), layout, batches=200)
        took_s: dict[TopicPartition, list[float]] = {few[0]: [], many[0]: []}
        chance = random.Random(1)
        for _, (tp, bases) in product(range(50), (few, many)):
            number, delta = chance.randrange(len(bases)), chance.randrange(RECORDS)
            timestamp = T0 + number * RECORDS + delta
            began = time.perf_counter()
            found = await storage.seek_ts(tp, timestamp)
            took_s[tp].append(time.perf_counter() - began)
            assert OffsetAndTimestamp(bases[number] + delta, timestamp) == found
        largest = await storage.seek_max_ts(many[0])

    few_s, many_s = map(median, took_s.values())
    print(f"{layout}: p50 {1000 * few_s:.2f} ms of few, {1000 * many_s:.2f} ms of many")  # noqa: T201
    assert OffsetAndTimestamp(many[1][-1] + RECORDS - 1, T0 + 200 * RECORDS - 1) == largest
    assert many_s < 4 * few_s


RECORDS = 1_000  # of a batch


async def filled(
    storage: RedisStreamsStorage, tp: TopicPartition, layout: str, *, batches: int
) -> tuple[TopicPartition, list[int]]:
    """Create a topic with `batches` batches, one record per millisecond. Return its partition and the base offsets."""
    await storage.create_topic(tp.topic, 1, {"storage.layout": layout, "retention.ms": "-1"})
    far = await append(storage, tp, [Record(timestamp=YEAR_2100)])
    bases = []
    for number in range(batches):
        first = T0 + number * RECORDS
        raw = ((delta, first + delta, None, b"x" * 100, ()) for delta in range(RECORDS))
        bases.append((await append_batch(storage, tp, RecordBatch(build_batch(raw)))).base_offset)
    await storage.truncate_before(tp, far.base_offset + 1)
    return tp, bases
