"""Clients reach the end of a log whose last records are gone: deleted from Redis, or lost with an older state of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.clients.confluent import Confluent
from tests.clients.interface import Record
from tests.failures.conftest import StartBroker
from tests.servers import VALKEY, StartServer, on

LIMIT_S = 60.0
RECORDS = 10


def read_by_kcat(servers: str, topic: str) -> list[bytes | None]:
    command = ["kcat", "-b", servers, "-C", "-t", topic, "-o", "beginning", "-e", "-q"]
    output = subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S).stdout
    return list(output.splitlines())


def read_by_confluent(servers: str, topic: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.partition.eof": "true"})
    values: list[bytes | None] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return values
            values.append(message.value() or b"")
    finally:
        consumer.close()
    raise AssertionError(f"no end of the partition after {values}")


def read_by_kafka_python(servers: str, topic: str) -> list[bytes | None]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    tp = kafka.TopicPartition(topic, 0)
    values: list[bytes | None] = []
    try:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        end = consumer.end_offsets([tp])[tp]
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for records in consumer.poll(500).values():
                values += [record.value for record in records]
            if consumer.position(tp) >= end:
                return values
    finally:
        consumer.close()
    raise AssertionError(f"no end of the partition after {values}")


READERS = [read_by_kcat, read_by_confluent, read_by_kafka_python]


@on(VALKEY)
@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
@pytest.mark.parametrize("read", READERS)
def test_readers_reach_an_end_whose_records_were_deleted(
    new_server: StartServer,
    start_broker: StartBroker,
    topic: str,
    layout: str,
    mapping: str,
    read: Callable[[str, str], list[bytes | None]],
) -> None:
    server = new_server()
    broker = start_broker(server.url, {"storage.layout": layout, "offset.mapping": mapping})
    client = Confluent(broker.bootstrap_servers)
    client.create_topic(topic)
    for number in range(RECORDS):
        client.produce(topic, [Record(value=b"%d" % number)])
    stream = f"korvet:{topic}:0"
    with server.client() as redis:
        entries = [entry_id for entry_id, _ in redis.xrange(stream)]
        assert RECORDS == len(entries)
        redis.xdel(stream, *entries[-3:])
    values = [b"%d" % number for number in range(RECORDS)]

    assert values[:-3] == read(broker.bootstrap_servers, topic)
    with server.client() as redis:
        redis.xdel(stream, *entries[:-3])
    assert [] == read(broker.bootstrap_servers, topic)
    client.produce(topic, [Record(value=b"next")])
    assert [b"next"] == read(broker.bootstrap_servers, topic)
