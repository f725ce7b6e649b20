"""Cost of TLS on korvet and Apache Kafka: `python -m bench.tls` produces and consumes 1 MB batches.

Every round takes each broker in turn, with and without TLS. Both have the same certificate, and korvet keeps the
records in memory. The output has the median rates and their ratios.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from attrs import evolve, frozen

from bench.kafka import MACHINE, SETTINGS
from bench.rdkafka import RdkafkaPerformance, build
from conformance.apache_kafka import ApacheKafka
from conformance.secured_kafka import certify
from tests.processes import KorvetProcess

RECORD_BYTES = 100
MEMORY = {"memory.max.bytes": "3000000000", "log.retention.bytes": "150000000"}


@frozen
class System:
    """A listener of a broker, and the client for it."""

    name: str
    port: int
    client: RdkafkaPerformance

    def rates(self, topic: str, records: int) -> tuple[float, float]:
        """Return the rates in and out, in records per second."""
        load = {"partitions": 1, "records": records, "record_bytes": RECORD_BYTES}
        produced = self.client.produce(self.port, topic, **load)
        return produced, self.client.consume(self.port, topic, **load)


@contextmanager
def systems() -> Iterator[list[System]]:
    """Run korvet and Apache Kafka, each with a plaintext and a TLS listener."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="korvet-tls-"))
        stack.callback(shutil.rmtree, folder)
        certify(folder)
        keystore = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "broker.pem")}
        plain = build()
        encrypted = evolve(
            plain, settings=("security.protocol=ssl", f"ssl.ca.location={folder / 'authority.pem'}")
        )
        kafka = stack.enter_context(
            ApacheKafka(settings=SETTINGS | keystore, machine=MACHINE, listeners={"SSL": "SSL"})
        )
        korvet = stack.enter_context(KorvetProcess(settings=MEMORY))
        secured = {"listener.security.protocol.map": "PLAINTEXT:SSL"} | keystore | MEMORY
        korvet_tls = stack.enter_context(KorvetProcess(settings=secured))
        yield [
            System("korvet", korvet.port, plain),
            System("korvet, TLS", korvet_tls.port, encrypted),
            System("Apache Kafka", kafka.port, plain),
            System("Apache Kafka, TLS", kafka.ports["SSL"], encrypted),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tls", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    with systems() as found:
        rates: dict[str, list[tuple[float, float]]] = {system.name: [] for system in found}
        for number in range(options.rounds + 1):
            for system in found[number % len(found) :] + found[: number % len(found)]:
                rates[system.name].append(system.rates(f"tls-{number}", options.records))
    medians = {  # without the first round, in which Java compiles
        name: tuple(median(values) for values in zip(*each[1:], strict=True)) for name, each in rates.items()
    }
    for name, (produced, consumed) in medians.items():
        print(f"{name:20} in {produced:12,.0f} records/s   out {consumed:12,.0f} records/s")
    for name, base in (
        ("korvet, TLS", "korvet"),
        ("Apache Kafka, TLS", "Apache Kafka"),
        ("korvet, TLS", "Apache Kafka, TLS"),
    ):
        into, out = (one / other for one, other in zip(medians[name], medians[base], strict=True))
        print(f"{name} / {base}: in {into:.2f}, out {out:.2f}")


if __name__ == "__main__":
    main()
