"""Apache Kafka for comparison: the jars of `make conformance`, started as Kafka's own scripts do.

Settings are Kafka's documented defaults. (The conformance harness gives Kafka's internal topics one partition each to
save time; here they have the default number.) Java's options are those of `kafka-server-start.sh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import Broker, DidNotStart
from conformance.apache_kafka import ApacheKafka, KafkaUnavailable

VERSION = "4.4.0"
MACHINE = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *(
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-Djava.awt.headless=true",
    ),
)
SETTINGS = {
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "share.coordinator.state.topic.num.partitions": "50",
}


@contextmanager
def apache_kafka() -> Iterator[Broker]:
    """Run one node on a free loopback port. Raises DidNotStart."""
    try:
        with ApacheKafka(settings=SETTINGS, machine=MACHINE) as kafka:
            if kafka.process is None:
                raise DidNotStart("Apache Kafka has no process")
            yield Broker(kafka.port, kafka.process.pid, kafka.started)
    except KafkaUnavailable as error:
        raise DidNotStart(str(error)) from error
