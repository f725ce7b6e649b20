"""Consumers follow the leaders of their partitions after failures, since no broker returns an older leader epoch."""

from __future__ import annotations

import logging
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.confluent import Confluent
from tests.failures.conftest import StartBroker
from tests.servers import VALKEY, StartServer, on

PARTITIONS = 6
LIMIT_S = 90.0


def values_of(consumer: Consumer, count: int) -> set[bytes]:
    """Poll until there are `count` values, or LIMIT_S is over."""
    deadline = time.monotonic() + LIMIT_S
    values: set[bytes] = set()
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.add(message.value())
    return values


def produce(servers: str, topic: str, prefix: str) -> set[bytes]:
    """Produce a record to each partition; return the values."""
    producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": str(int(LIMIT_S * 1000))})
    values = {number: f"{prefix}-{number}".encode() for number in range(PARTITIONS)}
    for number, value in values.items():
        producer.produce(topic, value, partition=number)
    assert 0 == producer.flush(LIMIT_S)
    return set(values.values())


@on(VALKEY)
def test_consumer_reads_the_partitions_of_a_broker_that_was_killed_after_redis_was_restarted(
    new_server: StartServer, start_broker: StartBroker, topic: str
) -> None:
    server = new_server(durable=True)
    brokers = [start_broker(server.url, {"broker.session.timeout.ms": "6000"}) for _ in range(2)]
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    Confluent(servers).create_topic(topic, partitions=PARTITIONS)
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("tests.librdkafka")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(Lines())
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": "false",
            "debug": "topic,metadata",
            "topic.metadata.refresh.interval.ms": "2000",
        },
        logger=logger,
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        expected = produce(servers, topic, "first")
        first = values_of(consumer, PARTITIONS)
        server.kill()
        server.start()
        restarted = produce(servers, topic, "restarted")
        second = values_of(consumer, PARTITIONS)
        brokers[1].kill()
        killed = produce(servers, topic, "killed")
        third = values_of(consumer, PARTITIONS)
    finally:
        consumer.close()

    assert (expected, restarted, killed) == (first, second, third)
    assert [] == [line for line in lines if "outdated metadata" in line]
