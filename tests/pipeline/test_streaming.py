from __future__ import annotations

import json

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from korvet.client import Record
from korvet.client.administration import add_partitions
from korvet.pipeline.offsets import WrongOption
from korvet.pipeline.source import KorvetSource
from korvet.pipeline.topic_reading import DataLost, RangePartition
from tests.pipeline.support import Cluster, Row, batch_reader, delete_records, rows_in, trigger

HOURS = 6
SECONDS = 3600 * HOURS
MIDNIGHT = 1_700_006_400_000


def values(rows: list[Row]) -> list[bytes]:
    return [row["value"] for row in rows]


def append_record_each_second(cluster: Cluster, topic: str) -> None:
    """Some hours of them, added by hand, so that the offsets are those of the hours."""
    with redis.Redis(unix_socket_path=cluster.storage) as server:
        for hour in range(HOURS):
            pipeline = server.pipeline(transaction=False)
            for second in range(3600 * hour, 3600 * (hour + 1)):
                pipeline.xadd(
                    f"korvet:{topic}:0", {"value": b"%d" % second}, id=f"{MIDNIGHT + 1000 * second}-0"
                )
            pipeline.execute()


def test_stream_starts_at_the_latest_offset_by_default(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"before")])
    reader = cluster.stream(subscribe=topic)
    start = reader.initialOffset()
    assert (start, []) == trigger(reader, start)
    cluster.produce(topic, [Record(b"after")])
    end, rows = trigger(reader, start)

    assert [b"after"] == values(rows)
    assert (end, []) == trigger(reader, end)
    assert end == reader.reportLatestOffset()


def test_triggers_respect_max_offsets_and_skip_no_record(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, partitions=3)
    cluster.produce(topic, [Record(b"%d" % n, partition=n % 3) for n in range(1000)])
    reader = cluster.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    offset, sizes, found = reader.initialOffset(), [], []
    assert ReadMaxRows(300) == reader.getDefaultReadLimit()
    while (step := trigger(reader, offset))[0] != offset:
        offset, rows = step
        sizes.append(len(rows))
        found += values(rows)

    assert len(sizes) <= 5
    assert max(sizes) <= 300
    assert sorted(b"%d" % n for n in range(1000)) == sorted(found)


def test_invalid_stream_option_is_raised_by_initial_offset() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "endingOffsets": "latest"}
    source = KorvetSource(options)
    reader = source.streamReader(source.schema())

    with pytest.raises(WrongOption, match="endingOffsets is not accepted here: it is for batch reads"):
        reader.initialOffset()


def test_trigger_without_a_limit_reads_all_available_records(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(100)])
    reader = cluster.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())

    assert 100 == len(list(rows_in(reader, reader.partitions(start, end))))
    assert ReadAllAvailable() == cluster.stream(subscribe=topic).getDefaultReadLimit()


@pytest.mark.servers
@pytest.mark.slow
def test_sparse_offsets_are_planned_by_records(record_timestamp: Cluster, topic: str) -> None:
    record_timestamp.create(topic)
    append_record_each_second(record_timestamp, topic)
    reader = record_timestamp.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    start = offset = reader.initialOffset()
    ends = []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        ends.append(end)
        offset = end
    first = list(rows_in(reader, reader.partitions(start, ends[0])))

    assert 22 == len(ends)
    assert [b"%d" % second for second in range(1000)] == values(first)
    assert (MIDNIGHT + 1000 * (SECONDS - 1) << 10) + 1 <= int(ends[-1][topic]["0"])

    split = batch_reader(record_timestamp.source(subscribe=topic, minPartitions=8))
    parts = split.partitions()
    sizes = [sum(batch.num_rows for batch in split.read(part)) for part in parts]

    assert [SECONDS // 8] * 8 == sizes


def test_stream_waits_for_min_offsets_until_max_trigger_delay(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(10)])
    patient = cluster.stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=20)
    hasty = cluster.stream(
        subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=20, maxTriggerDelay="0s"
    )
    start = patient.initialOffset()
    assert ReadMinRows(20) == patient.getDefaultReadLimit()
    assert start == patient.latestOffset(start, patient.getDefaultReadLimit())
    assert 10 == len(trigger(hasty, start)[1])
    cluster.produce(topic, [Record(b"%d" % n) for n in range(10)])

    assert 20 == len(trigger(patient, start)[1])


def test_available_now_run_ends_at_the_log_ends_of_its_start(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(25)])
    reader = cluster.stream(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10, minOffsetsPerTrigger=10
    )
    reader.prepareForTriggerAvailableNow()
    offset, sizes = reader.initialOffset(), []
    while (step := trigger(reader, offset))[0] != offset:
        offset, rows = step
        sizes.append(len(rows))
        cluster.produce(topic, [Record(b"late")])

    assert [10, 10, 5] == sizes


def test_new_partitions_and_topics_are_read_from_their_start(cluster: Cluster, topic: str) -> None:
    cluster.create(f"{topic}-a")
    cluster.produce(f"{topic}-a", [Record(b"0")])
    reader = cluster.stream(
        subscribePattern=f"{topic}-.*", startingOffsets="earliest", maxOffsetsPerTrigger=100
    )
    offset, rows = trigger(reader, reader.initialOffset())
    assert [b"0"] == values(rows)
    cluster.run(lambda client: add_partitions(client, f"{topic}-a", 2))
    cluster.create(f"{topic}-b")
    cluster.produce(f"{topic}-a", [Record(b"1", partition=1)])
    cluster.produce(f"{topic}-b", [Record(b"2")])
    offset, rows = trigger(reader, offset)

    assert [b"1", b"2"] == values(rows)
    assert {f"{topic}-a": {"0", "1", "topic_id"}, f"{topic}-b": {"0", "topic_id"}} == {
        name: of.keys() for name, of in offset.items()
    }


def test_deleted_topic_is_data_loss(cluster: Cluster, topic: str) -> None:
    cluster.create(f"{topic}-a")
    cluster.create(f"{topic}-b")
    options = {"subscribePattern": f"{topic}-.", "startingOffsets": "earliest"}
    strict, lax = cluster.stream(**options), cluster.stream(**options, failOnDataLoss="false")
    start = strict.initialOffset()
    cluster.run(lambda client: client.delete_topic(f"{topic}-b"))
    cluster.produce(f"{topic}-a", [Record(b"still")])
    with pytest.raises(DataLost, match=f"{topic}-b-0 cannot be read any more"):
        trigger(strict, start)

    assert [b"still"] == values(trigger(lax, start)[1])


def test_replayed_trigger_reads_the_same(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(50)])
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    first = cluster.stream(**options)
    start = first.initialOffset()
    end, rows = trigger(first, start)
    again = cluster.stream(**options, minPartitions=4)
    parts = again.partitions(start, end)

    assert [b"%d" % n for n in range(20)] == values(rows) == values(list(rows_in(again, parts)))
    assert 4 == len(parts)
    assert all(isinstance(part, RangePartition) for part in parts)
    assert [] == again.partitions(end, end)


def test_deleting_records_already_read_is_no_data_loss(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    reader = cluster.stream(subscribe=topic, startingOffsets="earliest")
    (read,) = cluster.produce(topic, [Record(b"read")])
    offset, _ = trigger(reader, reader.initialOffset())
    cluster.produce(topic, [Record(b"unread")])
    delete_records(cluster, topic, read.offset + 1)

    assert [b"unread"] == values(trigger(reader, offset)[1])


@pytest.mark.parametrize("now", [False, True], ids=["continuous", "available now"])
@pytest.mark.parametrize("count", [1, 50], ids=["fewer records", "more records"])
def test_recreated_topic_is_data_loss(cluster: Cluster, topic: str, count: int, *, now: bool) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(10)])
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 100}
    strict, lax = cluster.stream(**options), cluster.stream(**options, failOnDataLoss="false")
    start = strict.initialOffset()
    offset, _ = trigger(strict, start)
    cluster.run(lambda client: client.delete_topic(topic))
    cluster.create(topic)
    new = [b"new-%d" % n for n in range(count)]
    cluster.produce(topic, [Record(value) for value in new])
    if now:
        strict.prepareForTriggerAvailableNow()
        lax.prepareForTriggerAvailableNow()

    with pytest.raises(DataLost, match=f"topic {topic} was deleted and created again"):
        trigger(strict, offset)
    with pytest.raises(DataLost, match=f"topic {topic} was deleted and created again"):
        strict.partitions(start, offset)  # a trigger that was planned before and is run again
    assert [] == lax.partitions(start, offset)
    end, rows = trigger(lax, offset)
    assert new == values(rows)
    assert (end, []) == trigger(lax, end)


def test_checkpoint_without_topic_ids_is_resumed(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.produce(topic, [Record(b"%d" % n) for n in range(10)])
    reader = cluster.stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    offset, _ = trigger(reader, reader.initialOffset())
    topic_id = offset[topic].pop("topic_id")
    end, rows = trigger(reader, offset)

    assert [b"4", b"5", b"6", b"7"] == values(rows)
    assert topic_id == end[topic]["topic_id"]
    assert str(cluster.run(lambda client: client.topic(topic)).topic_id) == topic_id
    again = cluster.read(subscribe=topic, startingOffsets=json.dumps(end))
    assert [b"8", b"9"] == values(again)
