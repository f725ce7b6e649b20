"""Apache Kafka beside korvet: the same jars as `make conformance`, but as its own scripts start them.

Settings are Kafka's documented defaults (in the harness, topics of Kafka's own have one partition each, so that tests
are quick; here they have as many as ever); the Java virtual machine is told what `kafka-server-start.sh` tells it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import Broker, DidNotStart
from conformance.apache_kafka import ApacheKafka, KafkaUnavailable

VERSION = "4.3.1"
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
    """Run one node, on a loopback port of its own, and stop it at the end. Raises DidNotStart."""
    try:
        with ApacheKafka(settings=SETTINGS, machine=MACHINE) as kafka:
            if kafka.process is None:
                raise DidNotStart("Apache Kafka has no process")
            yield Broker(kafka.port, kafka.process.pid, kafka.started)
    except KafkaUnavailable as error:
        raise DidNotStart(str(error)) from error
