"""What the parts share whose programs are killed while they work, and whose committed output is then compared."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.part import Target, program
from tests.servers import parent_death_prefix

LIMIT_S = 180.0
QUIET_S = 3.0  # a record that came twice would come with the next commits


@contextmanager
def running(command_line: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program from its line "ready" until the end of the block, then kill it."""
    words = [*parent_death_prefix(), *command_line]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline().strip() not in ("ready", ""):
                pass
            yield process
        finally:
            process.kill()


def java_program(class_path: str, name: str, *words: str) -> list[str]:
    """Return the command line of a Java program. Raises Unavailable without Java."""
    java = program("java", f"the checks of {name} need Java 17 or newer")
    # After a kill, programs log errors about what they restore. What ends a program shows in its output.
    options = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    return [java, *options, "-cp", class_path, name, *words]


def create_topics(target: Target, topics: Sequence[str], partitions: int) -> None:
    """Create topics with one replica each."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    for created in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        created.result()


def committed(
    target: Target, topic: str, partitions: int, count: int, *, to_end: bool = False
) -> list[Message]:
    """Return the committed records of a topic once there are that many, or after the time limit.

    With `to_end`, it reads on for three seconds, so that a record that came twice is seen.
    """
    settings = {
        "bootstrap.servers": target.bootstrap_servers,
        "group.id": f"reader-{uuid4().hex}",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    found: list[Message] = []
    deadline = time.monotonic() + LIMIT_S
    quiet_until = 0.0
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    try:
        while time.monotonic() < deadline and (len(found) < count or time.monotonic() < quiet_until):
            enough = len(found) >= count
            found += [each for each in consumer.consume(500, 0.5) if each.error() is None]
            if to_end and not enough:
                quiet_until = time.monotonic() + QUIET_S
    finally:
        consumer.close()
    return found


def by_partition(messages: Sequence[Message], partitions: int) -> list[list[str]]:
    """Return the values of each partition, in order."""
    values: list[list[str]] = [[] for _ in range(partitions)]
    for each in messages:
        values[each.partition() or 0].append((each.value() or b"").decode())
    return values


def first_difference(expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> str:
    """Return how the first partition that has other values differs, or an empty text."""
    for number, (wanted, had) in enumerate(zip(expected, found, strict=True)):
        for place, (one, other) in enumerate(zip(wanted, had, strict=False)):
            if one != other:
                return f"partition {number}, record {place}: {other!r} in place of {one!r}"
        if len(wanted) != len(had):
            return f"partition {number} has {len(had)} records in place of {len(wanted)}"
    return ""
