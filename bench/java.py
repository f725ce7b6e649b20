"""Kafka's own load: the classes of `kafka-producer-perf-test` and `kafka-consumer-perf-test`, from Kafka's jars.

Their rates exclude the time in which Java starts, connects or joins a group. The producer's rate also excludes the
first tenth of its records, during which Java compiles.
"""

from __future__ import annotations

import re

from attrs import frozen

from bench.kafka import MACHINE
from bench.rdkafka import WrongCount
from conformance.apache_kafka import java_tool

RUN_LIMIT_S = 600.0
PRODUCED = re.compile(r"^(\d+) (?:steady state )?records sent, ([\d.]+) records/sec", re.MULTILINE)
#: The options of kafka-run-class.sh for tools.
TOOL_MACHINE = ("-Xmx512M", *MACHINE[2:])


@frozen
class JavaTools:
    """The interface of RdkafkaPerformance, with Java's clients."""

    def produce(
        self,
        port: int,
        topic: str,
        *,
        partitions: int,  # noqa: ARG002  the client asks for itself, and spreads
        records: int,
        record_bytes: int,
        batch_bytes: int = 1_000_000,
    ) -> float:
        """Produce with acks=all. Return records per second. Raises WrongCount."""
        warm_up = records // 10
        output = _run(
            *("kafka-producer-perf-test", "--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic),
            *("--num-records", str(records), "--record-size", str(record_bytes), "--throughput", "-1"),
            *("--warmup-records", str(warm_up), "--reporting-interval", "600000"),
            *("--command-property", "acks=all", "linger.ms=20", f"batch.size={batch_bytes}"),
            *("buffer.memory=134217728", "max.request.size=1048576"),
        )
        found = [(int(count), float(rate)) for count, rate in PRODUCED.findall(output)]
        if [count for count, _ in found] != [records, records - warm_up]:
            raise WrongCount(f"{records} records to produce, but: {output}")
        return found[-1][1]

    def consume(self, port: int, topic: str, *, partitions: int, records: int, record_bytes: int) -> float:  # noqa: ARG002
        """Consume that many records. Return records per second, without joining the group. Raises WrongCount."""
        output = _run(
            *("kafka-consumer-perf-test", "--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic),
            *("--num-records", str(records), "--hide-header", "--timeout", "30000"),
        )
        lines = [line.split(", ") for line in output.splitlines() if line.count(", ") == 9]
        if len(lines) != 1 or int(lines[0][4]) != records:
            raise WrongCount(f"{records} records to consume, but: {output}")
        return float(lines[0][9])


def _run(tool: str, *arguments: str) -> str:
    done = java_tool(tool, *arguments, machine=TOOL_MACHINE, limit_s=RUN_LIMIT_S)
    if done.returncode:
        raise WrongCount(f"{tool} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
