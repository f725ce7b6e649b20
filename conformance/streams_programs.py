"""Kafka Streams with `exactly_once_v2`: a program that counts is killed again and again, and each count comes once.

The program of `streams/` has a repartition topic, and a state store that it restores from its changelog. It is killed
with SIGKILL while records arrive. Afterwards the output, read at `read_committed`, must have each key's counts from 1
to the number of its records, in order and once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer

from conformance.apache_kafka import jars
from conformance.killed import committed, create_topics, java_program, running
from conformance.part import Result, Target, compiled_java

SOURCES = Path(__file__).with_name("streams")
PARTITIONS = 4
KEYS = 50
RECORDS = 6_000
ROUNDS = 4  # the program is killed between two of them


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the program on every broker."""
    with tempfile.TemporaryDirectory(prefix="korvet-streams-") as folder, ThreadPoolExecutor(2) as pool:
        class_path = compiled_java(sorted(SOURCES.glob("*.java")), folder, jars(SOURCES / "pom.xml"))
        yield from pool.map(lambda target: killed_while_counting(target, class_path), targets)


def killed_while_counting(target: Target, class_path: str) -> Result:
    """Produce in rounds, kill the program after each of them, and compare its output."""
    name = f"streams-{uuid4().hex[:8]}"
    read, written = f"{name}-in", f"{name}-out"
    create_topics(target, (read, written), PARTITIONS)
    producer = Producer({"bootstrap.servers": target.bootstrap_servers, "enable.idempotence": True})
    fault = ""
    with tempfile.TemporaryDirectory(prefix="korvet-streams-state-") as state:
        words = [target.bootstrap_servers, name, read, written, state]
        for number in range(ROUNDS):
            with running(java_program(class_path, "Counting", *words)) as process:
                for each in range(number * RECORDS // ROUNDS, (number + 1) * RECORDS // ROUNDS):
                    producer.produce(read, key=f"key-{each % KEYS}", value=str(each))
                    producer.poll(0)
                producer.flush()
                if number == ROUNDS - 1:
                    fault = wrong_counts(target, written)
                else:
                    # Some counts are committed, so that the kill comes amid transactions.
                    committed(target, written, PARTITIONS, (number + 1) * RECORDS // ROUNDS // 2)
                if process.poll() is not None:
                    fault = fault or f"the program ended with {process.returncode}"
    return Result("exactly_once_v2 counts each record once through kills", target.name, fault)


def wrong_counts(target: Target, topic: str) -> str:
    """Return what is wrong with the output once all records are counted, or after the time limit."""
    counts: dict[bytes, list[int]] = {}
    for message in committed(target, topic, PARTITIONS, RECORDS, to_end=True):
        counts.setdefault(message.key() or b"", []).append(int(message.value() or b"0"))
    for key in range(KEYS):
        found = counts.get(f"key-{key}".encode(), [])
        if found != list(range(1, RECORDS // KEYS + 1)):
            return f"the counts of key-{key}, of {RECORDS // KEYS} records, are {found}"
    return ""
