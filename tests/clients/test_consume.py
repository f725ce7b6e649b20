"""Start positions of consumers: the beginning, an offset, a timestamp, and an empty partition."""

from __future__ import annotations

import itertools
import time

from tests.clients.confluent import Confluent
from tests.clients.interface import AdminClient, Client, Record
from tests.clients.test_produce import records_of

FIRST_MS = 1_700_000_000_000


def timed_records(count: int) -> list[Record]:
    """Return records whose timestamps are ten seconds apart."""
    return [Record(value=b"%d" % number, timestamp_ms=FIRST_MS + 10_000 * number) for number in range(count)]


def untimed(records: list[Record]) -> list[Record]:
    return [Record(value=record.value) for record in records]


def test_offsets_increase_and_consuming_can_start_at_each(client: Client, topic: str) -> None:
    client.create_topic(topic)
    records = [Record(value=b"%d" % number) for number in range(10)]
    client.produce(topic, records)
    received = client.consume(topic, len(records))

    assert sorted({one.offset for one in received}) == [one.offset for one in received]
    for index, one in enumerate(received):
        assert received[index:] == client.consume(topic, len(records) - index, start=one.offset)


def test_offset_for_time_is_the_first_record_at_or_after_it(client: Client, topic: str) -> None:
    # kcat cannot set timestamps, so one client writes the records for all.
    client.create_topic(topic)
    Confluent(client.bootstrap_servers).produce(topic, timed_records(20))
    offsets = [one.offset for one in client.consume(topic, 20)]

    assert offsets[0] == client.offset_at(topic, 1)
    assert offsets[0] == client.offset_at(topic, FIRST_MS)
    assert offsets[7] == client.offset_at(topic, FIRST_MS + 70_000)
    assert offsets[8] == client.offset_at(topic, FIRST_MS + 70_001)
    assert offsets[19] == client.offset_at(topic, FIRST_MS + 190_000)


def test_offset_for_time_after_the_last_record_is_none(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    admin_client.produce(topic, timed_records(3))

    assert admin_client.offset_at(topic, FIRST_MS + 20_001) is None


def test_timestamps_are_consumed_unchanged(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    records = timed_records(5)
    admin_client.produce(topic, records)
    received = admin_client.consume(topic, 5)

    assert [record.timestamp_ms for record in records] == [one.timestamp_ms for one in received]


def test_consuming_starts_at_the_offset_for_a_time(client: Client, topic: str) -> None:
    client.create_topic(topic)
    records = timed_records(20)
    Confluent(client.bootstrap_servers).produce(topic, records)
    start = client.offset_at(topic, FIRST_MS + 150_000)

    assert start is not None
    assert untimed(records[15:]) == records_of(client.consume(topic, 5, start=start))


def test_consumer_waiting_on_an_empty_partition_receives_the_first_record(client: Client, topic: str) -> None:
    client.create_topic(topic)
    first = Record(value=b"first", key=b"k")
    writer = Confluent(client.bootstrap_servers)
    received = client.consume_first(topic, lambda: writer.produce(topic, [first]))

    assert first == received.record


def test_log_start_and_end_enclose_the_records(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    start, end = admin_client.bounds(topic)
    # Under the timestamp mapping an empty log begins and ends with its topic's creation, so that an offset that was
    # committed there never lies below the log start.
    assert start == end

    admin_client.produce(topic, [Record(value=b"%d" % number) for number in range(4)])
    received = admin_client.consume(topic, 4)

    assert received[0].offset >= start
    assert admin_client.bounds(topic) == (start, received[-1].offset + 1)


def test_partitions_are_independent_logs(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic, partitions=3)
    records = [Record(value=b"%d" % number, partition=number % 3) for number in range(30)]
    admin_client.produce(topic, records)

    by_partition = [records_of(admin_client.consume(topic, 10, partition=index)) for index in range(3)]
    assert [records[index::3] for index in range(3)] == by_partition


def test_many_batches_are_read_in_order(admin_client: AdminClient, topic: str) -> None:
    admin_client.create_topic(topic)
    numbers = itertools.count()
    started = time.time() * 1000
    for _ in range(20):
        admin_client.produce(topic, [Record(value=b"%d" % next(numbers)) for _ in range(50)])
    received = admin_client.consume(topic, 1_000)

    assert [b"%d" % number for number in range(1_000)] == [one.record.value for one in received]
    assert all(started - 1_000 < one.timestamp_ms < started + 60_000 for one in received)
