"""`python -m conformance.clients [PART …]`: unmodified clients that are not on PyPI, against korvet.

Parts: the Java client, its share consumers, Spring's listeners for them, Kafka's command line tools, its console tools
over TLS, Spark's Kafka connector, Kafka Streams, Kafka Connect, Flink, the Java program of docs/transactions.md,
clients in Go, clients in JavaScript, clients that are killed while they copy in transactions; in the other direction,
korvet's pipeline against an Apache Kafka with TLS, logins and an authorizer, its Iceberg mirror in catalogues of
others, and its tables in emulators of other object stores; and three brokers beside an Apache Kafka of three nodes.
Each part about brokers also runs on Apache Kafka: a check that fails there proves nothing about korvet, and counts as a
failure too. A part fails if the machine lacks something it requires, and names it. The exit status is 0 if nothing
failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

from conformance import (
    catalogues,
    connect_workers,
    copiers,
    flink_jobs,
    go_clients,
    iceberg_in_spark,
    java_client,
    node_clients,
    pipeline,
    secured_tools,
    spark_connector,
    stores,
    streams_programs,
    three_nodes,
    tools,
    transactions_page,
)
from conformance.apache_kafka import KafkaUnavailable
from conformance.part import Part, Target, Unavailable, targets

PARTS: Mapping[str, Part] = {
    "java": java_client.run,
    "share": java_client.run_shared,
    "spring": java_client.run_spring,
    "tools": tools.run,
    "secured": secured_tools.run,
    "spark": spark_connector.run,
    "streams": streams_programs.run,
    "connect": connect_workers.run,
    "flink": flink_jobs.run,
    "page": transactions_page.run,
    "go": go_clients.run,
    "node": node_clients.run,
    "pipeline": pipeline.run,
    "copiers": copiers.run,
    "catalogues": catalogues.run,
    "iceberg": iceberg_in_spark.run,
    "stores": stores.run,
    "nodes": three_nodes.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts, print a line per fault and a summary per part. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.clients", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these, of: {', '.join(PARTS)}")
    chosen = parser.parse_args(arguments).parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    try:
        with targets() as running:
            return 1 if sum([faults(name, PARTS[name], running) for name in chosen]) else 0
    except KafkaUnavailable as error:
        print(error, file=sys.stderr)
        return 2


def faults(name: str, part: Part, running: Sequence[Target]) -> int:
    """Run a part and print its results. Return the number of failed checks."""
    began = time.monotonic()
    passed = failed = 0
    try:
        for result in part(running):
            passed += not result.fault
            failed += bool(result.fault)
            if result.fault:
                print(f"FAILED {name} on {result.target}: {result.check}: {result.fault}", flush=True)
    except (Unavailable, KafkaUnavailable) as error:
        failed += 1
        print(f"FAILED {name}: {error}", flush=True)
    print(f"{name}: {passed} checks passed, {failed} failed, in {time.monotonic() - began:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
