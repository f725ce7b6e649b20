from __future__ import annotations

import random

import pytest
import redis

from korvet.client import Record
from korvet.client.isolation import Passing
from korvet.client.model import EARLIEST, TopicPartition
from korvet.pipeline.offsets import WrongOption
from korvet.pipeline.topic_reading import LAST_TIMESTAMP_MS, DataLost, RangePartition
from korvet.protocol.compression import Codec
from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.protocol.messages.fetch import AbortedTransaction
from korvet.protocol.record_batch import RecordBatch, build_batch
from tests.pipeline.support import Cluster, batch_reader, delete_records

NOON = 1_700_000_000_000


@pytest.mark.parametrize("codec", Codec)
def test_rows_equal_the_produced_records(cluster: Cluster, topic: str, codec: Codec) -> None:
    chance = random.Random(codec)
    records = [
        Record(
            value=chance.choice([None, b"", chance.randbytes(chance.randrange(300))]),
            key=chance.choice([None, b"", b"key-%d" % n]),
            headers=(("a", None), ("a", b"1"), ("b", b"")) if n % 3 == 0 else (),
            timestamp=NOON + n,
            partition=n % 3,
        )
        for n in range(2000)
    ]
    cluster.create(topic, partitions=3)
    produced = cluster.produce(topic, records, codec=codec)
    rows = cluster.read(subscribe=topic, includeHeaders="true")

    expected = {
        (place.partition, place.offset): (record.key, record.value, record.headers, record.timestamp)
        for place, record in zip(produced, records, strict=True)
    }
    found = {
        (row["partition"], row["offset"]): (
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
            round(row["timestamp"].timestamp() * 1000),
        )
        for row in rows
    }
    assert expected == found
    assert len(expected) == len(rows)
    assert {(topic, 0)} == {(row["topic"], row["timestampType"]) for row in rows}
    assert {None} == {row["headers"] for row in rows if not row["headers"]}, (
        "no headers are null, as in Spark"
    )


def test_batch_read_returns_the_configured_range(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    places = cluster.produce(topic, [Record(b"%d" % n, timestamp=NOON + n * 1000) for n in range(100)])
    start, end = places[10].offset, places[20].offset
    wanted = [b"%d" % n for n in range(10, 20)]

    def values(**options: object) -> list[bytes]:
        return [row["value"] for row in cluster.read(subscribe=topic, **options)]

    assert wanted == values(
        startingOffsets=f'{{"{topic}":{{"0":{start}}}}}', endingOffsets=f'{{"{topic}":{{"0":{end}}}}}'
    )
    assert wanted == values(startingTimestamp=NOON + 9_001, endingTimestamp=NOON + 20_000)
    assert [b"%d" % n for n in range(90, 100)] == values(
        startingOffsetsByTimestamp=f'{{"{topic}":{{"0":{NOON + 90_000}}}}}',
        endingOffsetsByTimestamp=f'{{"{topic}":{{"0":{NOON + 900_000}}}}}',
    )
    assert [] == values(startingTimestamp=NOON + 900_000, startingOffsetsByTimestampStrategy="latest")
    assert 100 == len(values(startingOffsets=f'{{"{topic}":{{"0":-2}}}}'))
    with pytest.raises(WrongOption, match="startingOffsetsByTimestampStrategy=latest begins at its end"):
        values(startingTimestamp=NOON + 900_000)


def test_partitions_are_assigned_named_or_matched(memory: Cluster, topic: str) -> None:
    for name in (f"{topic}-x", f"{topic}-y"):
        memory.create(name, partitions=2)
        memory.produce(name, [Record(name.encode(), partition=n) for n in range(2)])

    def found(**options: object) -> list[tuple[str, int]]:
        return [(row["topic"], row["partition"]) for row in memory.read(**options)]

    both = [(f"{topic}-x", 0), (f"{topic}-x", 1), (f"{topic}-y", 0), (f"{topic}-y", 1)]
    assert both == found(subscribe=f"{topic}-x,{topic}-y")
    assert both == found(subscribePattern=f"{topic}-.")
    assert [] == found(subscribePattern=topic)
    assert both[1:2] == found(assign=f'{{"{topic}-x":[1]}}')
    with pytest.raises(UnknownTopicOrPartition, match=f"There is no topic {topic}"):
        found(subscribe=topic)
    with pytest.raises(UnknownTopicOrPartition, match=f"There is no {topic}-x-2"):
        found(assign=f'{{"{topic}-x":[1,2]}}')


def test_starting_offsets_require_every_partition(memory: Cluster, topic: str) -> None:
    memory.create(topic, partitions=2)
    with pytest.raises(WrongOption, match=f"lacks {topic}-1; -2 stands for the earliest"):
        memory.read(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":0}}}}')
    with pytest.raises(WrongOption, match=f"names {topic}-2, which is not read"):
        memory.read(subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":0,"1":0,"2":0}}}}')


def test_empty_topic_has_no_rows(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, partitions=3)

    assert [] == cluster.read(subscribe=topic)
    assert [] == cluster.read(subscribe=topic, minPartitions=10)


def test_record_of_ten_megabytes_is_read(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, max_message_bytes="20000000")
    value = random.Random(1).randbytes(10_000_000)
    cluster.produce(topic, [Record(b"before"), Record(value), Record(b"after")])

    assert [b"before", value, b"after"] == [row["value"] for row in cluster.read(subscribe=topic)]


@pytest.mark.slow
def test_thousand_partitions_with_a_record_each_are_read(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, partitions=1000)
    cluster.produce(topic, [Record(b"%d" % n, partition=n) for n in range(1000)])
    reader = cluster.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    planned = [each.range for each in reader.partitions(start, end) if isinstance(each, RangePartition)]
    some = [row["value"] for row in cluster.read(assign=f'{{"{topic}":[0,7,999]}}')]

    assert list(range(1000)) == [each.tp.partition for each in planned if each]
    assert [b"0", b"7", b"999"] == some


def test_timestamps_out_of_range_are_null(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    timestamps = [0, 1, LAST_TIMESTAMP_MS, LAST_TIMESTAMP_MS + 1, 2**63 - 1]
    for timestamp in timestamps:
        memory.produce(topic, [Record(b"", timestamp=timestamp)])
    reader = batch_reader(memory.source(subscribe=topic))
    found = [
        value
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for value in batch.column("timestamp").cast("int64").to_pylist()
    ]

    assert [0, 1000, LAST_TIMESTAMP_MS * 1000, None, None] == found


def test_min_partitions_splits_a_partition_evenly(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, partitions=2)
    cluster.produce(topic, [Record(b"%d" % n, partition=int(n < 200)) for n in range(1000)])
    reader = batch_reader(cluster.source(subscribe=topic, minPartitions=10))
    sizes = [sum(batch.num_rows for batch in reader.read(partition)) for partition in reader.partitions()]

    assert [100] * 10 == sizes


def test_tasks_read_at_most_max_records_per_partition(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(1000)])
    reader = batch_reader(cluster.source(subscribe=topic, maxRecordsPerPartition=300))
    sizes = [sum(batch.num_rows for batch in reader.read(partition)) for partition in reader.partitions()]

    assert [250] * 4 == sizes


@pytest.mark.servers
def test_externally_deleted_entries_are_skipped(record_timestamp: Cluster, topic: str) -> None:
    record_timestamp.create(topic)
    places = record_timestamp.produce(topic, [Record(b"%d" % n) for n in range(100)])
    with redis.Redis(unix_socket_path=record_timestamp.storage) as server:
        ids = [f"{place.offset >> 10}-{place.offset & 1023}" for place in places]
        server.xdel(f"korvet:{topic}:0", *ids[10:20], *ids[95:])
    rows = record_timestamp.read(subscribe=topic)

    assert [b"%d" % n for n in range(95) if not 10 <= n < 20] == [row["value"] for row in rows]


@pytest.mark.parametrize("when", ["before planning", "after planning"])
def test_deleted_records_are_data_loss_unless_fail_on_data_loss_is_false(
    cluster: Cluster, topic: str, when: str
) -> None:
    cluster.create(topic)
    places = cluster.produce(topic, [Record(b"%d" % n) for n in range(100)])
    start = f'{{"{topic}":{{"0":{places[0].offset}}}}}'
    strict = batch_reader(cluster.source(subscribe=topic, startingOffsets=start))
    lax = batch_reader(cluster.source(subscribe=topic, startingOffsets=start, failOnDataLoss="false"))
    if when == "before planning":
        delete_records(cluster, topic, places[40].offset)
        with pytest.raises(DataLost, match=f"{topic}-0 offsets {places[0].offset} to .* cannot be read"):
            strict.partitions()
        planned = lax.partitions()
    else:
        planned = strict.partitions()
        delete_records(cluster, topic, places[40].offset)
        with pytest.raises(DataLost, match="Set failOnDataLoss=false to continue without them"):
            list(strict.read(planned[0]))
    values = [value for batch in lax.read(planned[0]) for value in batch.column("value").to_pylist()]

    assert [b"%d" % n for n in range(40, 100)] == values


def test_offset_beyond_the_log_end_is_data_loss(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    start = f'{{"{topic}":{{"0":{2**55}}}}}'
    with pytest.raises(DataLost, match="the topic is a different one of the same name"):
        cluster.read(subscribe=topic, startingOffsets=start)

    assert [] == cluster.read(subscribe=topic, startingOffsets=start, failOnDataLoss="false")


def test_earliest_is_the_log_start_after_delete_records(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    places = cluster.produce(topic, [Record(b"%d" % n) for n in range(10)])
    delete_records(cluster, topic, places[4].offset)
    tp = TopicPartition(topic, 0)
    earliest = cluster.run(lambda client: client.list_offsets({tp: EARLIEST}))[tp].offset
    rows = cluster.read(subscribe=topic)

    assert earliest == rows[0]["offset"] == places[4].offset
    assert [b"%d" % n for n in range(4, 10)] == [row["value"] for row in rows]


def test_closing_the_iterator_ends_its_fetches(memory: Cluster, topic: str) -> None:
    memory.create(topic)
    memory.produce(topic, [Record(bytes(100_000)) for n in range(400)])
    reader = batch_reader(memory.source(subscribe=topic, kafka__fetch__max__bytes=1_000_000))
    (partition,) = reader.partitions()
    rows = reader.read(partition)
    first = next(rows)
    rows.close()  # type: ignore[attr-defined]  # it is a generator

    assert 0 < first.num_rows < 400


def transactional(base_offset: int, producer_id: int) -> RecordBatch:
    return RecordBatch(
        build_batch(
            [(0, 0, None, b"v", ())],
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
    )


def control(base_offset: int, producer_id: int, key: bytes) -> RecordBatch:
    return RecordBatch(
        build_batch(
            [(0, 0, key, b"\0\0\0\0\0\0", ())],
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )
    )


ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def test_aborted_and_control_batches_are_left_out() -> None:
    plain = RecordBatch(build_batch([(0, 0, None, b"v", ())], base_offset=3))
    batches = [
        transactional(0, 7),
        transactional(1, 8),
        transactional(2, 7),
        plain,
        control(4, 7, ABORT),
        transactional(5, 7),
        control(6, 8, COMMIT),
        control(7, 7, COMMIT),
    ]
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]

    some_aborted, none_aborted = Passing(aborted), Passing()
    assert [1, 3, 5] == [batch.base_offset for batch in batches if some_aborted.passes(batch)]
    assert [0, 1, 2, 3, 5] == [batch.base_offset for batch in batches if none_aborted.passes(batch)]
    assert (2, 3) == (some_aborted.aborted_records(0, 8), some_aborted.marker_count(0, 8))
    assert (1, 1) == (some_aborted.aborted_records(1, 6), some_aborted.marker_count(1, 6))
    assert (0, 3) == (none_aborted.aborted_records(0, 8), none_aborted.marker_count(0, 8))
