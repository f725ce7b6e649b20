"""Flink with the exactly once sink of its Kafka connector: a job is killed again and again, and each record comes once.

The program of `flink/` copies a topic, and begins each time at its newest checkpoint: the transactions that this
checkpoint has prepared are committed by another process than the one that wrote them, and those after it are aborted.
It runs with both ways in which the connector names transactions: INCREMENTING aborts by beginning each id again,
POOLING asks the broker which transactions are open. Afterwards the output, read at `read_committed`, must have each
record once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer

from conformance.apache_kafka import jars
from conformance.killed import committed, create_topics, java_program, running
from conformance.part import Result, Target, compiled_java

SOURCES = Path(__file__).with_name("flink")
NAMING = ("INCREMENTING", "POOLING")
PARTITIONS = 4
RECORDS = 4_000
ROUNDS = 4  # the program is killed between two of them


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the program on every broker, with both ways of naming transactions."""
    with tempfile.TemporaryDirectory(prefix="korvet-flink-") as folder, ThreadPoolExecutor(2) as pool:
        class_path = compiled_java(sorted(SOURCES.glob("*.java")), folder, jars(SOURCES / "pom.xml"))
        for naming in NAMING:
            yield from pool.map(partial(killed_while_copying, class_path, naming), targets)


def killed_while_copying(class_path: str, naming: str, target: Target) -> Result:
    """Produce in rounds, kill the program after each of them, and compare its output."""
    name = f"flink-{uuid4().hex[:8]}"
    read, written = f"{name}-in", f"{name}-out"
    create_topics(target, (read, written), PARTITIONS)
    producer = Producer({"bootstrap.servers": target.bootstrap_servers, "enable.idempotence": True})
    values: list[str] = []
    ended = ""
    with tempfile.TemporaryDirectory(prefix="korvet-flink-checkpoints-") as folder:
        words = [target.bootstrap_servers, name, read, written, folder, naming]
        for number in range(ROUNDS):
            with running(java_program(class_path, "Copying", *words)) as process:
                for each in range(number * RECORDS // ROUNDS, (number + 1) * RECORDS // ROUNDS):
                    producer.produce(read, str(each), partition=each % PARTITIONS)
                producer.flush()
                last = number == ROUNDS - 1
                expected = RECORDS if last else len(values) + RECORDS // ROUNDS // 3
                messages = committed(target, written, PARTITIONS, expected, to_end=last)
                values = [(each.value() or b"").decode() for each in messages]
                if process.poll() is not None:
                    ended = f"; the program ended with {process.returncode} in round {number}"
    # Two writers share the partitions, so that their records interleave.
    missing = RECORDS - len(set(values))
    doubled = len(values) - len(set(values))
    fault = (
        f"{missing} records are missing, {doubled} came twice{ended}" if missing or doubled or ended else ""
    )
    return Result(
        f"the exactly once sink copies each record once through kills ({naming})", target.name, fault
    )
