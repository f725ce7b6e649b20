"""Kafka Streams with `exactly_once_v2`: a program that counts is killed again and again, and each count comes once.

The program of `streams/` has a repartition topic, and a state store that it restores from its changelog. It is killed
with SIGKILL while records arrive. Afterwards the output, read at `read_committed`, must have each key's counts from 1
to the number of its records, in order and once.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.apache_kafka import jars
from conformance.part import Result, Target, command, program

SOURCES = Path(__file__).with_name("streams")
PARTITIONS = 4
KEYS = 50
RECORDS = 6_000
ROUNDS = 4  # the program is killed between two of them
LIMIT_S = 180.0


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the program on every broker."""
    compiler = program("javac", "Kafka Streams' checks need a JDK, 17 or newer")
    with tempfile.TemporaryDirectory(prefix="korvet-streams-") as folder:
        libraries = jars(SOURCES / "pom.xml")
        command(compiler, "-nowarn", "-d", folder, "-cp", f"{libraries}/*", *sorted(SOURCES.glob("*.java")))
        class_path = f"{folder}:{libraries}/*"
        with ThreadPoolExecutor(2) as pool:
            yield from pool.map(lambda target: killed_while_counting(target, class_path), targets)


def killed_while_counting(target: Target, class_path: str) -> Result:
    """Produce in rounds, kill the program after each of them, and compare its output."""
    name = f"streams-{uuid4().hex[:8]}"
    read, written = f"{name}-in", f"{name}-out"
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    for created in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in (read, written)]).values():
        created.result()
    producer = Producer({"bootstrap.servers": target.bootstrap_servers, "enable.idempotence": True})
    fault = ""
    with tempfile.TemporaryDirectory(prefix="korvet-streams-state-") as state:
        words = [target.bootstrap_servers, name, read, written, state]
        for number in range(ROUNDS):
            with running(class_path, words) as process:
                for each in range(number * RECORDS // ROUNDS, (number + 1) * RECORDS // ROUNDS):
                    producer.produce(read, key=f"key-{each % KEYS}", value=str(each))
                    producer.poll(0)
                producer.flush()
                if number == ROUNDS - 1:
                    fault = waited_for(target, written)
                else:
                    wait_for_some(target, written, (number + 1) * RECORDS // ROUNDS // 2)
                if process.poll() is not None:
                    fault = fault or f"the program ended with {process.returncode}"
    return Result("exactly_once_v2 counts each record once through kills", target.name, fault)


@contextmanager
def running(class_path: str, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run the program until the end of the block, then kill it."""
    java = program("java", "Kafka Streams' checks need Java 17 or newer")
    # Streams logs an error for each state that it restores after a kill. What ends the program shows in the counts.
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command_line = [java, *options, "-cp", class_path, "Counting", *words]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline().strip() not in ("ready", ""):
                pass
            yield process
        finally:
            process.kill()


@contextmanager
def committed_reader(target: Target, topic: str) -> Iterator[Consumer]:
    """Open a consumer that reads a topic from its beginning, and sees only what is committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "group.id": f"reader-{uuid4().hex}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def wait_for_some(target: Target, topic: str, count: int) -> None:
    """Wait until that many counts are committed, so that the kill comes amid transactions."""
    deadline = time.monotonic() + LIMIT_S
    with committed_reader(target, topic) as consumer:
        while count > 0 and time.monotonic() < deadline:
            count -= len(consumer.consume(500, 0.5))


def waited_for(target: Target, topic: str) -> str:
    """Return what is wrong with the output once all records are counted, or after the time limit."""
    counts: dict[bytes, list[int]] = {}
    missing = RECORDS
    deadline = time.monotonic() + LIMIT_S
    quiet_until = 0.0
    with committed_reader(target, topic) as consumer:
        while time.monotonic() < deadline and (missing > 0 or time.monotonic() < quiet_until):
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    counts.setdefault(message.key() or b"", []).append(int(message.value() or b"0"))
                    missing -= 1
            if missing > 0:
                quiet_until = time.monotonic() + 3  # a duplicate would come with the next commits
    for key in range(KEYS):
        found = counts.get(f"key-{key}".encode(), [])
        if found != list(range(1, RECORDS // KEYS + 1)):
            return f"the counts of key-{key}, of {RECORDS // KEYS} records, are {found}"
    return ""
