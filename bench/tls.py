"""Throughput over TLS: korvet in memory beside Apache Kafka, with the same certificate.

Topics are created through a second listener without TLS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from attrs import evolve, frozen

from bench.kafka import MACHINE, SETTINGS
from bench.processes import temporary_folder
from bench.rdkafka import RdkafkaPerformance
from conformance.apache_kafka import ApacheKafka
from conformance.secured_kafka import certify
from tests.processes import KorvetProcess
from tests.support import wire

MEMORY_SETTINGS = {"memory.max.bytes": "4000000000"}
LISTENER_MAP = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL"}
LISTENERS = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"


@frozen
class System:
    """A broker with two listeners, and a client of the one with TLS."""

    name: str
    plain_port: int
    tls_port: int
    client: RdkafkaPerformance

    def rates(self, topic: str, records: int, record_bytes: int, batch_bytes: int) -> tuple[float, float]:
        """Produce into a new topic of one partition, and consume it. Return the records per second of each."""
        wire.create_topic(self.plain_port, topic, partitions=1)
        wire.await_topic(self.plain_port, topic, partitions=1)
        produced = self.client.produce(
            self.tls_port,
            topic,
            partitions=1,
            records=records,
            record_bytes=record_bytes,
            batch_bytes=batch_bytes,
        )
        consumed = self.client.consume(
            self.tls_port, topic, partitions=1, records=records, record_bytes=record_bytes
        )
        wire.delete_topic(self.plain_port, topic)
        return produced, consumed


@contextmanager
def systems(client: RdkafkaPerformance, memory: str, kafka: str) -> Iterator[list[System]]:
    """Run both brokers under these names."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        certify(folder)
        client = evolve(client, settings=trusting(folder / "authority.pem"))
        keystore = keystore_in(folder)
        settings = MEMORY_SETTINGS | LISTENER_MAP | keystore
        korvet = stack.enter_context(KorvetProcess(settings=settings, options=("--listeners", LISTENERS)))
        port = tls_port(korvet)
        apache = stack.enter_context(
            ApacheKafka(settings=SETTINGS | keystore, machine=MACHINE, listeners={"SSL": "SSL"})
        )
        yield [
            System(memory, korvet.port, port, client),
            System(kafka, apache.port, apache.ports["SSL"], client),
        ]


def keystore_in(folder: Path) -> dict[str, str]:
    """Return a broker's settings for the certificate that `certify` has put into a folder."""
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "broker.pem")}


def tls_port(korvet: KorvetProcess) -> int:
    """Return the port of the listener with TLS."""
    return int(korvet.wait_for_log(r"SSL://127\.0\.0\.1:(\d+)")[1])


def trusting(authority: Path) -> tuple[str, ...]:
    """Return the settings of librdkafka for TLS with that authority."""
    return "security.protocol=ssl", f"ssl.ca.location={authority}"


def rounds(
    running: list[System], number: int, warm_ups: int, load: Mapping[str, int]
) -> Iterator[tuple[str, float, float]]:
    """Yield a system's name and its rates in and out, for each system in each round. Warm-ups are not yielded."""
    names = count()
    for round_number in range(-warm_ups, number):
        start = round_number % len(running)
        for system in running[start:] + running[:start]:
            rates = system.rates(f"tls-{next(names)}", **load)
            if round_number >= 0:
                yield system.name, *rates
